// SPDX-License-Identifier: Apache-2.0
// Numbers that look random and are a function of their input alone, the same on every machine.
#pragma once

#include <cstdint>

namespace trimtab {

inline constexpr uint64_t kSplitMix64Step = 0x9e3779b97f4a7c15U;

// One step of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014): mixes the
// 64 bits of x so that close inputs give unrelated outputs. For keys of several parts: split_mix64(split_mix64(a) ^ b).
// The published sequence is split_mix64(seed + n * kSplitMix64Step), n = 0, 1, ...
inline uint64_t split_mix64(uint64_t x) {
  x += kSplitMix64Step;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace trimtab
