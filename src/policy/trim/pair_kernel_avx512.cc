// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "policy/trim/pair_kernel.h"

namespace trimtab::avx512 {
constexpr int kNativeLanes = 16;
#include "policy/trim/pair_kernel_impl.h"
}  // namespace trimtab::avx512
