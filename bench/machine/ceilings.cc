// SPDX-License-Identifier: Apache-2.0
#include "bench/machine/ceilings.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "bench/machine/stopwatch.h"
#include "experts/isa.h"
#include "trimtab/table.h"

namespace trimtab::bench {
namespace {

// Handed out one by one as the kernels' panels are, so that a member that is late costs what it
// costs them.
constexpr int kPieces = 8;  // of each member
constexpr size_t kPieceBytes = size_t{2} << 20;
constexpr int kWakingReads = 3;           // untimed streams before the timed one
constexpr int64_t kPieceRounds = 10'000;  // 140,000 instructions: 20 to 80 us

constexpr const IsaLoops* kAllLoops[] = {
    &kScalarLoops,
#if defined(__x86_64__)
    &kAvx2Loops,
    &kAvx512Loops,
    &kAvx512Bf16Loops,
#endif
};

// Runs body(i) for all pieces and returns how long that took.
template <class Body>
double seconds(Team& team, const Body& body) {
  const Stopwatch watch(team);
  team.for_each(int64_t{kPieces} * team.size(), body);
  return watch.seconds();
}

}  // namespace

std::vector<const IsaLoops*> available_loops() {
  std::vector<const IsaLoops*> found;
  for (const GemmKernels* kernels : available_kernels()) {
    for (const IsaLoops* loops : kAllLoops) {
      if (loops->isa == std::string_view(kernels->isa)) found.push_back(loops);
    }
  }
  return found;
}

const IsaLoops& chosen_loops() {
  const IsaLoops* best = &kScalarLoops;
  for (const GemmKernels* kernels : available_kernels()) {
    for (const IsaLoops* loops : kAllLoops) {
      if (loops->isa == std::string_view(kernels->isa)) best = loops;
    }
    if (kernels == &chosen_kernels()) break;
  }
  return *best;
}

const DotLoop& dot_loop(const IsaLoops& loops, DotKind kind) {
  const DotLoop& dots = loops.dots[static_cast<size_t>(kind)];
  return dots.instruction != nullptr ? dots : loops.dots[static_cast<size_t>(DotKind::kF32)];
}

size_t free_memory() {
  std::ifstream memory("/proc/meminfo");
  for (std::string key; memory >> key;) {
    size_t kilobytes = 0;
    if (key == "MemAvailable:" && memory >> kilobytes) return kilobytes * 1024;
  }
  return std::numeric_limits<size_t>::max();
}

size_t cold_bytes(size_t wanted) {
  return std::min(wanted, free_memory() / 2);
}

Buffer touched_memory(size_t bytes, Team& team) {
  Buffer memory(std::max(bytes / kPieceBytes, size_t{1}) * kPieceBytes);
  // Memory that was never written is one page of zeros, which is always in the cache.
  team.for_each(memory.bytes() / kPieceBytes, [&](int64_t i) {
    std::memset(memory.data() + cells(i) * kPieceBytes, 1, kPieceBytes);
  });
  return memory;
}

Ceilings::Ceilings(const IsaLoops& loops, Team& team, size_t memory)
    : Ceilings(loops, team, touched_memory(memory, team)) {}

Ceilings::Ceilings(const IsaLoops& loops, Team& team, Buffer memory)
    : loops_(loops), team_(team), memory_(std::move(memory)) {}

double Ceilings::peak(DotKind kind) {
  const DotLoop& dots = dot_loop(loops_, kind);
  const double time = seconds(team_, [&](int64_t) {
    alignas(64) const std::byte operand[64] = {};
    alignas(64) std::byte sink[64];
    dots.run(kPieceRounds, operand, sink);
  });
  return dots.ops_per_round * static_cast<double>(kPieceRounds) * kPieces * team_.size() / time;
}

double Ceilings::stream() {
  const size_t pieces = memory_.bytes() / kPieceBytes;
  const auto read = [&](int64_t i) {
    alignas(64) std::byte sink[64];
    loops_.read(memory_.data() + (next_ + cells(i)) % pieces * kPieceBytes, kPieceBytes, sink);
  };
  const size_t timed = cells(kPieces, team_.size());
  // Memory that was idle, as it was while the peak was measured, starts slowly on some machines.
  for (int i = 0; i < kWakingReads; ++i, next_ = (next_ + timed) % pieces) seconds(team_, read);
  const double time = seconds(team_, read);
  next_ = (next_ + timed) % pieces;
  return static_cast<double>(timed * kPieceBytes) / time;
}

}  // namespace trimtab::bench
