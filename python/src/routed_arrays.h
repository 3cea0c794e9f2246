// SPDX-License-Identifier: Apache-2.0
// The arrays of a call of forward() as tokens, and what runtimes are told besides.
#pragma once

#include <chrono>
#include <string>

#include "arrays.h"
#include "rank_pass.h"

namespace trimtab::python {

template <class T>
using Contiguous = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Throws InvalidArgument, with the array's name, for ids and weights that are not [tokens, top_k]
// of x, and as rows_of(). Types and sizes of rows are the layer's to check.
RoutedTokens routed_tokens(const Array& x, const Array& ids, const Contiguous<float>& weights,
                           const OutArray& out, int top_k);

// left: "weight_and_sum", "sum" or "nothing". Throws InvalidArgument.
WeightUse weight_use(bool weight_on_input, const std::string& left);

// Throws InvalidArgument for a timeout that is not in (0, 1e6) seconds.
std::chrono::milliseconds checked_timeout(double seconds);

}  // namespace trimtab::python
