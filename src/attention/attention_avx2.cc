// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_kernel.h"
#include "experts/avx2.h"

namespace trimtab {

const AttentionKernels kAvx2Attention = make_attention<Avx2>("avx2");

}  // namespace trimtab
