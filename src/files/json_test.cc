// SPDX-License-Identifier: Apache-2.0
#include "files/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/test_folder.h"
#include "files/testing.h"

namespace trimtab {
namespace {

std::string refusal(std::string_view text) {
  return error_text<FormatError>([&] { parse_json(text, "some.json"); });
}

void expect_refused(std::string_view text, std::string_view part) {
  const std::string found = refusal(text);
  EXPECT_TRUE(found.starts_with("some.json")) << found;
  EXPECT_NE(found.find(part), found.npos) << found << "\n lacks " << part;
}

TEST(ParseJson, AKeyThatComesTwiceInOneObjectIsRefused) {
  expect_refused(R"({"a": 1, "a": 2})", "key 'a' comes twice");
  expect_refused(R"([{"b": {"a": 1, "c": [], "a": 1}}])", "key 'a' comes twice");
  expect_refused(R"({"a": 1, "b": {"a": 2}, "a": 3})", "key 'a' comes twice");
  EXPECT_NO_THROW(parse_json(R"({"a": {"a": [{"a": 1}, {"a": 2}]}, "b": {"a": 3}})", "some.json"));
}

TEST(ParseJson, NestingIsLimited) {
  EXPECT_NO_THROW(parse_json(std::string(64, '[') + std::string(64, ']'), "some.json"));
  expect_refused(std::string(65, '[') + std::string(65, ']'), "nested more than 64 deep");
  const std::string wide = "[[" + std::string(100, ' ') + "], [], [], [[]]]";
  EXPECT_EQ(parse_json(wide, "some.json").size(), 4U);
}

TEST(ParseJson, OtherTextsAreRefusedWithThePlace) {
  expect_refused("", "at byte 1: not valid JSON");
  expect_refused(R"({"a": 1} x)", "at byte 10: not valid JSON");
  expect_refused(std::string_view("{}\0 x", 5), "at byte 2: a NUL byte");
  expect_refused("{\"a\": NaN}", "not valid JSON");
  expect_refused("{\"a\": 1e999}", "not valid JSON");
  expect_refused("{'a': 1}", "not valid JSON");
  expect_refused("{\"a\": 1,}", "not valid JSON");
  EXPECT_EQ(refusal("[1,").find("json.exception"), std::string::npos);
}

TEST(ReadJson, AFileThatCannotBeReadIsNamed) {
  const TestFolder folder;
  const std::string text = error_text<FormatError>([&] { read_json(folder.path("absent.json")); });
  EXPECT_NE(text.find("absent.json: can't be opened"), text.npos) << text;
  folder.write("a.json", "{\"a\": [1, 2]}\r\n");
  EXPECT_EQ(read_json(folder.path("a.json"))["a"].size(), 2U);
}

}  // namespace
}  // namespace trimtab
