// SPDX-License-Identifier: Apache-2.0
// Numbers that look random and are a function of their input alone, the same on every machine.
#pragma once

#include <cstdint>

namespace trimtab {

inline constexpr uint64_t kSplitMix64Step = 0x9e3779b97f4a7c15U;

// One step of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
// OOPSLA 2014): mixes the 64 bits of x so that close inputs give unrelated outputs. For keys of
// several parts: split_mix64(split_mix64(a) ^ b). The published sequence is split_mix64(seed + n *
// kSplitMix64Step), n = 0, 1, ...
inline uint64_t split_mix64(uint64_t x) {
  x += kSplitMix64Step;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// A sequence of random numbers that a seed determines.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    const uint64_t value = split_mix64(state_);
    state_ += kSplitMix64Step;
    return value;
  }
  // In [0, n), n > 0. The bias of at most n / 2^32 does not matter to a search.
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(((bits() >> 32) * n) >> 32); }
  // In (0, 1).
  float unit() { return (static_cast<float>(bits() >> 41) + 0.5F) * 0x1p-23F; }

 private:
  uint64_t state_;
};

}  // namespace trimtab
