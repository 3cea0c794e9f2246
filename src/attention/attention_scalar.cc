// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_kernel.h"
#include "experts/scalar.h"

namespace trimtab {

const AttentionKernels kScalarAttention = make_attention<Scalar>("scalar");

}  // namespace trimtab
