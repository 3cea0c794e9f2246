// SPDX-License-Identifier: Apache-2.0
#include "recordings/json_reader.h"

#include <gtest/gtest.h>

#include "base/quoted.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

TEST(JsonReader, Strings) {
  const std::string file = "some";
  const auto read = [&](std::string_view text) {
    JsonReader json(text, file);
    std::string value = json.string();
    json.end();
    return value;
  };
  EXPECT_EQ(read(R"("a\"\\\/\b\f\n\r\tA\u00e9\u20ac\ud83d\ude00")"),
            "a\"\\/\b\f\n\r\tA\u00e9\u20ac\U0001F600");
  EXPECT_EQ(read(json_quoted("\x01\"\\\n")), "\x01\"\\\n");
  for (const char* bad : {"\"", "\"\\", "\"\\x\"", "\"\\u12\"", "\"\\ud83d\"", "\"\\ud83d\\u0041\"",
                          "\"\\ude00\"", "\"\n\"", "a", "\"a\" b"}) {
    EXPECT_THROW(read(bad), FormatError) << bad;
  }
}

TEST(JsonReader, SkipsWhatIsJsonAndNothingElse) {
  const std::string file = "some";
  const auto skip = [&](std::string_view text) {
    JsonReader json(text, file);
    json.skip_value();
    json.end();
  };
  for (const char* good :
       {"{}", "[]", "[1, -0, 2.5e-3, 1E+9, true, false, null]", R"({"a": {"b": ["c"]}})", " 0 "}) {
    EXPECT_NO_THROW(skip(good)) << good;
  }
  for (const char* bad : {"", "[", "[1,]", "[,]", "[1 2]", "{\"a\"}", "{\"a\":1,}", "{1:2}", "01",
                          "1.", "1e", "-", "+1", "nul", "NaN", "{\"a\":1,\"a\":2}", "[]]", "'a'"}) {
    EXPECT_THROW(skip(bad), FormatError) << bad;
  }
  EXPECT_NO_THROW(skip(std::string(64, '[') + std::string(64, ']')));
  EXPECT_THROW(skip(std::string(65, '[') + std::string(65, ']')), FormatError);
}

}  // namespace
}  // namespace trimtab
