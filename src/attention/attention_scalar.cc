// SPDX-License-Identifier: Apache-2.0
#include "attention/attention_kernel.h"
#include "experts/scalar.h"

namespace trimtab {
namespace {

// With the loads of elements that caches hold.
struct KvLoads : Scalar {
  static Reg load_bf16(const uint16_t* p) {
    return Reg{to_float(bf16_t{p[0]}), to_float(bf16_t{p[1]}), to_float(bf16_t{p[2]}),
               to_float(bf16_t{p[3]})};
  }
  static Reg load_int8(const int8_t* p) {
    return Reg{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]),
               static_cast<float>(p[3])};
  }
};

}  // namespace

const AttentionKernels kScalarAttention = make_attention<KvLoads>("scalar");

}  // namespace trimtab
