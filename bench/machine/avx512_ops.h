// SPDX-License-Identifier: Apache-2.0
// The common part of the two AVX-512 instruction sets; see isa_loops.h.
#pragma once

#include <immintrin.h>

#include "bench/machine/dot_loop.h"

namespace trimtab::bench {
namespace {

struct F32 {
  using Reg = __m512;
  static constexpr int kOps = 32;
  static Reg load(const std::byte* p) { return _mm512_load_ps(p); }
  static void store(std::byte* p, Reg x) { _mm512_store_ps(p, x); }
  static Reg zero() { return _mm512_setzero_ps(); }
  static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg dot(Reg sum, Reg x) { return _mm512_fmadd_ps(x, x, sum); }
};

struct Integers {
  using Reg = __m512i;
  static Reg load(const std::byte* p) { return _mm512_load_si512(p); }
  static void store(std::byte* p, Reg x) { _mm512_store_si512(p, x); }
  static Reg zero() { return _mm512_setzero_si512(); }
  static Reg add(Reg a, Reg b) { return _mm512_add_epi32(a, b); }
  static Reg mix(Reg a, Reg b) { return _mm512_xor_si512(a, b); }
};

}  // namespace
}  // namespace trimtab::bench
