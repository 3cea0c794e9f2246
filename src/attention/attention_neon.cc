// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_kernel.h"
#include "experts/neon.h"

namespace trimtab {
namespace {

// With the loads of elements that caches hold.
struct KvLoads : Neon {
  static Reg load_bf16(const uint16_t* p) {
    const uint16x8_t words = vld1q_u16(p);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(words), 16)),
            vreinterpretq_f32_u32(vshll_high_n_u16(words, 16))};
  }
  static Reg load_int8(const int8_t* p) {
    const int16x8_t words = vmovl_s8(vld1_s8(p));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))};
  }
};

}  // namespace

const AttentionKernels kNeonAttention = make_attention<KvLoads>("neon");

}  // namespace trimtab
