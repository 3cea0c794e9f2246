// SPDX-License-Identifier: Apache-2.0
#include "base/checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace trimtab {
namespace {

constexpr size_t kLanes = 8;  // so many multiplications are under way at a time

// For a given word a bijection of the hash, and for a given hash one of the word: a difference
// never dies out by itself. Both are multiplied, so that what another word would have to be to make
// up for one flipped bit has nothing simple in it.
uint64_t mix(uint64_t hash, uint64_t word) {
  return std::rotl(hash ^ word * 0x9e3779b97f4a7c15U, 29) * 0xd1342543de82ef95U;
}

uint64_t word_at(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

}  // namespace

uint64_t checksum(std::span<const std::byte> bytes) {
  std::array<uint64_t, kLanes> lanes = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::byte* p = bytes.data();
  size_t left = bytes.size();
  for (; left >= sizeof lanes; p += sizeof lanes, left -= sizeof lanes) {
    for (size_t l = 0; l < kLanes; ++l) lanes[l] = mix(lanes[l], word_at(p + l * sizeof(uint64_t)));
  }
  std::array<uint64_t, kLanes> last = {};
  if (left > 0) std::memcpy(last.data(), p, left);
  uint64_t hash = bytes.size();
  for (size_t l = 0; l < kLanes; ++l) hash = mix(hash, mix(lanes[l], last[l]));
  return hash;
}

}  // namespace trimtab
