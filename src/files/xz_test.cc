// SPDX-License-Identifier: Apache-2.0
// Built where liblzma is; without_xz_test.cc is for builds without it.
#include "files/xz.h"

#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

const std::string kFixtures = std::string(TRIMTAB_SOURCE_DIR) + "/tests/fixtures/formats/";
// 4 MiB of zeros, and a byte that asks for a dictionary of 192 MiB.
const std::string kZeros = kFixtures + "zeros.xz", kHungry = kFixtures + "hungry.xz";
const std::string kTrace = kFixtures + "trace.topk.txt.xz";

void expect_refused(std::span<const std::byte> image, size_t max_bytes, const std::string& part,
                    int64_t offset) {
  try {
    unpack_xz(image, "some.xz", max_bytes);
    ADD_FAILURE() << "accepted; should say " << part;
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << error.what() << "\n lacks " << part;
    EXPECT_TRUE(0 <= error.offset() && error.offset() <= static_cast<int64_t>(image.size()))
        << error.what();
    if (offset >= 0) {
      EXPECT_EQ(error.offset(), offset);
    }
  }
}

TEST(UnpackXz, GivesWhatWasPacked) {
  EXPECT_EQ(unpack_xz(read_file(kTrace), "some.xz"), read_file(kFixtures + "trace.topk.txt"));
  EXPECT_EQ(unpack_xz(read_file(kZeros), "some.xz"), std::vector<std::byte>(4 << 20));
}

TEST(UnpackXz, TakesStreamsOneBehindTheOther) {
  std::vector<std::byte> twice = read_file(kTrace);
  const std::vector<std::byte> once = twice, text = read_file(kFixtures + "trace.topk.txt");
  twice.insert(twice.end(), 4, std::byte{0});  // the padding that the format allows
  twice.insert(twice.end(), once.begin(), once.end());
  std::vector<std::byte> want = text;
  want.insert(want.end(), text.begin(), text.end());
  EXPECT_EQ(unpack_xz(twice, "some.xz"), want);
}

TEST(UnpackXz, RefusesEveryCut) {
  const std::vector<std::byte> image = read_file(kTrace);
  for (size_t size = 6; size < image.size(); ++size) {
    expect_refused(std::span(image).first(size), kMaxUnpacked, "xz: the file ends too early", -1);
  }
}

TEST(UnpackXz, RefusesEveryChangedByte) {
  const std::vector<std::byte> image = read_file(kTrace);
  for (size_t i = 6; i < image.size(); ++i) {
    std::vector<std::byte> changed = image;
    changed[i] ^= std::byte{0x40};
    expect_refused(changed, kMaxUnpacked, "xz: ", -1);
  }
}

TEST(UnpackXz, RefusesWhatFollows) {
  std::vector<std::byte> image = read_file(kTrace);
  const auto end = static_cast<int64_t>(image.size());
  image.insert(image.end(), 12, std::byte{'x'});
  expect_refused(image, kMaxUnpacked, "something other than xz follows", -1);
  image.resize(static_cast<size_t>(end) + 1);
  expect_refused(image, kMaxUnpacked, "xz: ", -1);
}

TEST(UnpackXz, StopsAtTheLimit) {
  const std::vector<std::byte> image = read_file(kZeros);
  EXPECT_EQ(unpack_xz(image, "some.xz", 4 << 20).size(), size_t{4} << 20);
  expect_refused(image, (4 << 20) - 1,
                 "holds more than 4194303 bytes; if that is right, unpack it first", -1);
  expect_refused(image, 0, "holds more than 0 bytes", -1);
}

TEST(UnpackXz, RefusesToTakeMuchMemory) {
  expect_refused(read_file(kHungry), kMaxUnpacked, "unpacking needs more than 128 MiB of memory",
                 -1);
}

}  // namespace
}  // namespace trimtab
