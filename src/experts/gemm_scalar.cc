// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "experts/scalar.h"

namespace trimtab {
namespace {

// Byte by byte.
struct PlainBytes {
  using Ints = Ints128;
  struct Bytes {
    uint8_t at[16];
  };
  struct Row {
    int at[4];
  };
  static constexpr int kMaxRows = 2;
  static Ints set_int(int x) { return Ints{x, x, x, x}; }
  static Ints load_ints(const int32_t* p) { return Ints{p[0], p[1], p[2], p[3]}; }
  static Ints multiply(Ints a, Ints b) { return a * b; }
  static Scalar::Reg to_float(Ints x) { return __builtin_convertvector(x, Scalar::Reg); }
  static Bytes load_bytes(const std::byte* p) {
    Bytes bytes;
    std::memcpy(&bytes, p, sizeof(bytes));
    return bytes;
  }
  static void load_nibbles(const std::byte* p, Bytes& even, Bytes& odd) {
    const Bytes both = load_bytes(p);
    for (int i = 0; i < 16; ++i) {
      even.at[i] = both.at[i] & 0x0f;
      odd.at[i] = static_cast<uint8_t>(both.at[i] >> 4);
    }
  }
  static Row broadcast(const std::byte* x) {
    Row row;
    for (int i = 0; i < 4; ++i) row.at[i] = static_cast<int8_t>(x[i]);
    return row;
  }
  static Ints dot(Ints sum, const Bytes& w, const Row& x) {
    for (int c = 0; c < 4; ++c) {
      for (int i = 0; i < 4; ++i) sum[c] += w.at[4 * c + i] * x.at[i];
    }
    return sum;
  }
};

}  // namespace

const GemmKernels kScalarKernels = make_kernels<Scalar, PairDot<Scalar>, PlainBytes>("scalar");

// erfc keeps the digits of small results at negative x that 1 + erf cancels. -40 stands for all
// below: the result is 0.
float gelu(float x) noexcept {
  const double bounded = x < -40.0F ? -40.0 : static_cast<double>(x);
  return static_cast<float>(0.5 * bounded * std::erfc(-bounded * 0.70710678118654752));
}

}  // namespace trimtab
