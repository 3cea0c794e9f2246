// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_kernel.h"
#include "experts/neon.h"

namespace trimtab {

const AttentionKernels kNeonAttention = make_attention<Neon>("neon");

}  // namespace trimtab
