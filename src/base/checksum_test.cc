// SPDX-License-Identifier: Apache-2.0
#include "base/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace trimtab {
namespace {

std::vector<std::byte> random_bytes(size_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// No two of them give the same sum either, so that a second flip never makes up for a first.
TEST(Checksum, SeesEveryFlippedBit) {
  for (const size_t size : {1U, 8U, 63U, 64U, 200U, 1024U}) {
    std::vector<std::byte> bytes = random_bytes(size);
    const uint64_t right = checksum(bytes);
    std::set<uint64_t> wrong;
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      const auto mask = static_cast<std::byte>(1U << bit % 8);
      bytes[bit / 8] ^= mask;
      wrong.insert(checksum(bytes));
      bytes[bit / 8] ^= mask;
    }
    EXPECT_EQ(wrong.size(), 8 * size);
    EXPECT_FALSE(wrong.contains(right));
    EXPECT_EQ(checksum(bytes), right);
  }
}

TEST(Checksum, SeesBlocksInAnotherOrderAndOtherLengths) {
  std::vector<std::byte> bytes = random_bytes(512);
  const uint64_t right = checksum(bytes);
  std::swap_ranges(bytes.begin(), bytes.begin() + 64, bytes.begin() + 128);
  EXPECT_NE(checksum(bytes), right);
  std::set<uint64_t> sums;
  const std::vector<std::byte> zeros(300);
  for (size_t size = 0; size <= zeros.size(); ++size)
    sums.insert(checksum(std::span(zeros).first(size)));
  EXPECT_EQ(sums.size(), zeros.size() + 1);
}

}  // namespace
}  // namespace trimtab
