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

// Whatever comes behind the whole characters, they stay as they are.
TEST(Text, WholeCharactersDoNotChangeByWhatFollows) {
  const std::string text =
      "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xe2x\xf0\x9f\xed\xa0\x80\xff\xc3z";
  const std::string all = valid_utf8(text);
  size_t before = 0;
  for (size_t n = 0; n <= text.size(); ++n) {
    const size_t whole = whole_characters(text.substr(0, n));
    EXPECT_LE(n - whole, 3U);
    EXPECT_GE(whole, before) << n;  // what was whole stays whole
    before = whole;
    EXPECT_TRUE(all.starts_with(valid_utf8(text.substr(0, whole)))) << n;
  }
  EXPECT_EQ(whole_characters(text), text.size());
  EXPECT_EQ(whole_characters("a\xf0\x9f\x98"), 1U);
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
