// SPDX-License-Identifier: Apache-2.0
#include "bench/machine/avx512_ops.h"

namespace trimtab::bench {
namespace {

struct BF16 : F32 {
  static constexpr int kOps = 64;
  static Reg dot(Reg sum, Reg x) {
    const auto words = __builtin_bit_cast(__m512bh, x);
    return _mm512_dpbf16_ps(sum, words, words);
  }
};

struct I8 : Integers {
  static constexpr int kOps = 128;
  static Reg dot(Reg sum, Reg x) { return _mm512_dpbusd_epi32(sum, x, x); }
};

}  // namespace

const IsaLoops kAvx512Bf16Loops = {
    "avx512_bf16",
    {make_dots<F32>("VFMADD zmm"), make_dots<BF16>("VDPBF16PS zmm"), make_dots<I8>("VPDPBUSD zmm")},
    run_reads<Integers>};

}  // namespace trimtab::bench
