// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "eplb/policy/pair_kernel.h"

namespace trimtab::avx2 {
constexpr int kNativeLanes = 8;
#include "eplb/policy/pair_kernel_impl.h"
}  // namespace trimtab::avx2
