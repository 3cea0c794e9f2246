// SPDX-License-Identifier: Apache-2.0
#include "experts/avx2.h"

namespace trimtab {
namespace {

// VPDPBUSD: four products of u8 and s8 added to an int.
struct Vnni : Avx2Ints {
  using Bytes = Ints;
  static constexpr int kMaxRows = Avx2::kMaxRows;
  static Bytes load_bytes(const std::byte* p) { return ints(load(p)); }
  static void load_nibbles(const std::byte* p, Bytes& even, Bytes& odd) {
    even = ints(low_nibbles(load(p)));
    odd = ints(high_nibbles(load(p)));
  }
  static Ints broadcast(const std::byte* x) { return set_int(load_step(x)); }
  static Ints dot(Ints sum, Bytes w, Ints x) {
    return ints(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sum),
                                        reinterpret_cast<__m256i>(w),
                                        reinterpret_cast<__m256i>(x)));
  }
};

}  // namespace

const GemmKernels kAvx2VnniKernels = make_pair_kernels<Avx2, Vnni>("avx2_vnni");

}  // namespace trimtab
