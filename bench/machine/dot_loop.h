// SPDX-License-Identifier: Apache-2.0
// The loop over an instruction set's operations. Included by the files of the instruction sets, see
// isa_loops.h.
#pragma once

#include "bench/machine/isa_loops.h"

namespace trimtab::bench {
namespace {

// Sums in flight: latency (up to 6 cycles) times two a cycle, and few enough for 16 registers with
// the operand.
constexpr int kSums = 14;

// Op: Reg, load, store, zero, add (to fold the sums), dot(sum, operand), kOps per dot.
template <class Op>
void run_dots(int64_t rounds, const std::byte* operand, std::byte* sink) noexcept {
  const typename Op::Reg x = Op::load(operand);
  typename Op::Reg sums[kSums];
  for (int s = 0; s < kSums; ++s) sums[s] = Op::zero();
  for (int64_t i = 0; i < rounds; ++i) {
    for (int s = 0; s < kSums; ++s) sums[s] = Op::dot(sums[s], x);
  }
  for (int s = 1; s < kSums; ++s) sums[0] = Op::add(sums[0], sums[s]);
  Op::store(sink, sums[0]);
}

template <class Op>
constexpr DotLoop make_dots(const char* instruction) {
  return {instruction, static_cast<double>(kSums) * Op::kOps, run_dots<Op>};
}

// Eight registers a round, so that the loads and not the loop are what takes time.
template <class Op>
void run_reads(const std::byte* from, size_t bytes, std::byte* sink) noexcept {
  constexpr size_t kReads = 8;
  typename Op::Reg sums[kReads];
  for (size_t r = 0; r < kReads; ++r) sums[r] = Op::zero();
  for (size_t at = 0; at < bytes; at += kReads * sizeof(typename Op::Reg)) {
    for (size_t r = 0; r < kReads; ++r)
      sums[r] = Op::mix(sums[r], Op::load(from + at + r * sizeof(typename Op::Reg)));
  }
  for (size_t r = 1; r < kReads; ++r) sums[0] = Op::mix(sums[0], sums[r]);
  Op::store(sink, sums[0]);
}

}  // namespace
}  // namespace trimtab::bench
