// SPDX-License-Identifier: Apache-2.0
// Loops that do nothing but multiply and add, or read: what one instruction set can reach at most.
// As with the kernels of src/experts, each file is compiled with the flags of its instruction set,
// so what it defines stays local to it, and it includes nothing but fixed-size integers and
// intrinsics.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trimtab::bench {

// What the elements of a dot product are.
enum class DotKind { kF32, kBF16, kI8 };

struct DotLoop {
  const char* instruction;  // null: the instruction set has none
  double ops_per_round;     // multiplications and additions
  // operand: 64 bytes of zeros; sink: 64 bytes that take the sums, so that no compiler drops the
  // loop.
  void (*run)(int64_t rounds, const std::byte* operand, std::byte* sink) noexcept;
};

struct IsaLoops {
  const char* isa;
  DotLoop dots[3];  // by DotKind
  // Reads all of [from, from + bytes): 64-byte aligned, a multiple of 512 bytes.
  void (*read)(const std::byte* from, size_t bytes, std::byte* sink) noexcept;
};

extern const IsaLoops kScalarLoops;
#if defined(__x86_64__)
extern const IsaLoops kAvx2Loops;        // with FMA; int8 by VPMADDUBSW
extern const IsaLoops kAvx512Loops;      // F, BW, DQ, VL; int8 by VPMADDUBSW
extern const IsaLoops kAvx512Bf16Loops;  // and BF16, VNNI, VBMI
#endif

}  // namespace trimtab::bench
