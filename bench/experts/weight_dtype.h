// SPDX-License-Identifier: Apache-2.0
// The weight formats that can be measured: one row of a table each, with what the roof and the
// check need to know.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "bench/machine/isa_loops.h"
#include "trimtab/experts.h"

namespace trimtab::bench {

struct WeightDType {
  std::string_view name;  // as --dtype has it
  WeightFormat weights;   // of Linear and Mlp
  DType rows;             // of x and of the activations between the two products
  DType source;           // what weights are made from
  DotKind dot;            // the multiplications that it allows
  double bits;            // read from memory for each weight, scales included
  double rows_unit;       // rounding to `rows`, relative to the value
  double x_unit;  // quantising x inside the kernel, relative to the largest of its row (int8) or to
                  // the value
};

std::span<const WeightDType> weight_dtypes();

// Throws InvalidArgument with the names.
const WeightDType& find_weight_dtype(std::string_view name);

}  // namespace trimtab::bench
