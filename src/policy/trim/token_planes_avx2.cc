// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/token_planes.h"

namespace trimtab::avx2 {
#include "policy/trim/token_planes_impl.h"
}  // namespace trimtab::avx2
