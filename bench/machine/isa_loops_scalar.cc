// SPDX-License-Identifier: Apache-2.0
#include "bench/machine/dot_loop.h"

namespace trimtab::bench {
namespace {

// Whatever the compiler makes of four lanes on a plain CPU.
struct F32 {
  typedef float Reg __attribute__((vector_size(16)));
  static constexpr int kOps = 8;
  static Reg load(const std::byte* p) {
    Reg x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  }
  static void store(std::byte* p, Reg x) { __builtin_memcpy(p, &x, sizeof(x)); }
  static Reg zero() { return Reg{}; }
  static Reg add(Reg a, Reg b) { return a + b; }
  static Reg dot(Reg sum, Reg x) { return sum + sum * x; }
};

struct Words {
  typedef uint64_t Reg __attribute__((vector_size(16)));
  static Reg load(const std::byte* p) {
    Reg x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
  }
  static void store(std::byte* p, Reg x) { __builtin_memcpy(p, &x, sizeof(x)); }
  static Reg zero() { return Reg{}; }
  static Reg mix(Reg a, Reg b) { return a ^ b; }
};

}  // namespace

const IsaLoops kScalarLoops = {
    "scalar", {make_dots<F32>("multiply, add"), {}, {}}, run_reads<Words>};

}  // namespace trimtab::bench
