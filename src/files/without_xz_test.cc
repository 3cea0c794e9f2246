// SPDX-License-Identifier: Apache-2.0
// xz.cc as a build without liblzma has it.
#include <gtest/gtest.h>

#include <string_view>

#include "files/xz.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using std::string_view_literals::operator""sv;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

constexpr std::string_view kPacked =
    "\xfd"
    "7zXZ\0\0\4"sv;

TEST(WithoutXz, FilesAreKnownByTheirFirstBytes) {
  EXPECT_TRUE(is_xz(bytes_of(kPacked)));
  EXPECT_FALSE(is_xz(bytes_of(kPacked.substr(0, 5))));
  EXPECT_FALSE(is_xz(bytes_of("0 1|2 3\n"sv)));
  EXPECT_FALSE(is_xz({}));
}

TEST(WithoutXz, TheErrorSaysTheWayOut) {
  try {
    unpack_xz(bytes_of(kPacked), "some.xz");
    ADD_FAILURE() << "accepted";
  } catch (const FormatError& error) {
    EXPECT_EQ(std::string_view(error.what()),
              "some.xz at byte 0: compressed with xz, which this build can't unpack (liblzma was "
              "not there); unpack it "
              "first: xz -dc FILE");
    EXPECT_EQ(error.offset(), 0);
  }
}

}  // namespace
}  // namespace trimtab
