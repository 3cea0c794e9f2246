// SPDX-License-Identifier: Apache-2.0
#if defined(__AVX512VPOPCNTDQ__)
#include <immintrin.h>
#endif

#include "policy/trim/token_planes.h"

namespace trimtab::avx512 {
#include "policy/trim/token_planes_impl.h"
}  // namespace trimtab::avx512
