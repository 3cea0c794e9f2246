// SPDX-License-Identifier: Apache-2.0
#include "bench/machine/ceilings.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/cat.h"
#include "bench/machine/stopwatch.h"
#include "trimtab/error.h"

namespace trimtab::bench {
namespace {

// Handed out one by one as the kernels' panels are, so that a member that is late costs what it costs them.
constexpr int kPieces = 8;  // of each member
constexpr size_t kPieceBytes = size_t{2} << 20;
constexpr int64_t kPieceRounds = 10'000;  // 140,000 instructions: 20 to 80 us

std::vector<const IsaLoops*> detect() {
  std::vector<const IsaLoops*> found = {&kScalarLoops};
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2) found.push_back(&kAvx2Loops);
  if (avx512) found.push_back(&kAvx512Loops);
  if (avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
      __builtin_cpu_supports("avx512vbmi")) {
    found.push_back(&kAvx512Bf16Loops);
  }
#endif
  return found;
}

// Runs body(i) for all pieces and returns how long that took.
template <class Body>
double seconds(Team& team, const Body& body) {
  const Stopwatch watch(team);
  team.for_each(int64_t{kPieces} * team.size(), body);
  return watch.seconds();
}

}  // namespace

std::span<const IsaLoops* const> available_loops() {
  static const std::vector<const IsaLoops*> found = detect();
  return found;
}

const IsaLoops& chosen_loops() {
  const char* wanted = std::getenv("TRIMTAB_ISA");
  if (wanted == nullptr || *wanted == 0) return *available_loops().back();
  std::string names;
  for (const IsaLoops* loops : available_loops()) {
    if (loops->isa == std::string_view(wanted)) return *loops;
    names += cat(names.empty() ? "" : ", ", loops->isa);
  }
  throw InvalidArgument(cat("TRIMTAB_ISA=", wanted, ": this CPU has ", names));
}

const DotLoop& dot_loop(const IsaLoops& loops, DotKind kind) {
  const DotLoop& dots = loops.dots[static_cast<size_t>(kind)];
  return dots.instruction != nullptr ? dots : loops.dots[static_cast<size_t>(DotKind::kF32)];
}

size_t cold_bytes(size_t wanted) {
  std::ifstream memory("/proc/meminfo");
  for (std::string key; memory >> key;) {
    size_t kilobytes = 0;
    if (key == "MemAvailable:" && memory >> kilobytes) return std::min(wanted, kilobytes * 1024 / 2);
  }
  return wanted;
}

Ceilings::Ceilings(const IsaLoops& loops, Team& team, size_t memory)
    : loops_(loops), team_(team), memory_(std::max(memory / kPieceBytes, size_t{1}) * kPieceBytes) {
  // Memory that was never written is one page of zeros, which is always in the cache.
  team_.for_each(static_cast<int64_t>(memory_.bytes() / kPieceBytes), [&](int64_t i) {
    std::memset(memory_.data() + static_cast<size_t>(i) * kPieceBytes, 1, kPieceBytes);
  });
}

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
  const size_t pieces = memory_.bytes() / kPieceBytes, first = next_;
  const double time = seconds(team_, [&](int64_t i) {
    alignas(64) std::byte sink[64];
    loops_.read(memory_.data() + (first + static_cast<size_t>(i)) % pieces * kPieceBytes, kPieceBytes, sink);
  });
  const size_t read = static_cast<size_t>(kPieces) * static_cast<size_t>(team_.size());
  next_ = (first + read) % pieces;
  return static_cast<double>(read * kPieceBytes) / time;
}

}  // namespace trimtab::bench
