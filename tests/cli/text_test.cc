// SPDX-License-Identifier: Apache-2.0
#include "cli/output/text.h"

#include <gtest/gtest.h>

#include <vector>

namespace trimtab::cli {
namespace {

TEST(Text, SpecialTokensAreLeftOut) {
  EXPECT_EQ(bytes_of(std::vector<int32_t>{256, 'a', 257, 255, 300}), "a\xff");
}

// The expected strings are what Python's bytes.decode("utf-8", "replace") gives.
TEST(Text, InvalidPartsBecomeOneReplacementEach) {
  EXPECT_EQ(valid_utf8("az \xc3\xa9 \xd0\xaf \xe2\x82\xac \xf0\x9f\x98\x80"),
            "az \xc3\xa9 \xd0\xaf \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(valid_utf8("\x80"), "\xef\xbf\xbd");
  EXPECT_EQ(valid_utf8("\xc3"), "\xef\xbf\xbd");        // cut off
  EXPECT_EQ(valid_utf8("\xe2\x82"), "\xef\xbf\xbd");    // cut off after two of three
  EXPECT_EQ(valid_utf8("\xe2\x82x"), "\xef\xbf\xbdx");  // broken off
  EXPECT_EQ(valid_utf8("\xf0\x9f\x98"), "\xef\xbf\xbd");
  EXPECT_EQ(valid_utf8("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd");  // overlong
  EXPECT_EQ(valid_utf8("\xe0\x80\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // surrogate
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(valid_utf8("\xff\xfe"), "\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(Text, ControlCharactersDoNotReachTheTerminal) {
  EXPECT_EQ(printable("a\tb\n\x1b[2J\r\x7f"), "a\tb\n\xef\xbf\xbd[2J\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(printable("\xc2\x9b"
                      "1m \xc2\xa0"),
            "\xef\xbf\xbd"
            "1m \xc2\xa0");
}

}  // namespace
}  // namespace trimtab::cli
