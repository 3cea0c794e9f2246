// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_kernel.h"
#include "experts/avx512.h"

namespace trimtab {

const AttentionKernels kAvx512Attention = make_attention<Avx512>("avx512");

}  // namespace trimtab
