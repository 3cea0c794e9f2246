// SPDX-License-Identifier: Apache-2.0
#include "bench/machine/avx512_ops.h"

namespace trimtab::bench {
namespace {

struct I8 : Integers {
  static constexpr int kOps = 128;
  // The sum stands in for a row of x: a product that does not change would be taken out of the
  // loop.
  static Reg dot(Reg sum, Reg x) {
    return _mm512_add_epi32(sum,
                            _mm512_madd_epi16(_mm512_maddubs_epi16(sum, x), _mm512_set1_epi16(1)));
  }
};

}  // namespace

const IsaLoops kAvx512Loops = {"avx512",
                               {make_dots<F32>("VFMADD zmm"), {}, make_dots<I8>("VPMADDUBSW zmm")},
                               run_reads<Integers>};

}  // namespace trimtab::bench
