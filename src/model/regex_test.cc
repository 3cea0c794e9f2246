// SPDX-License-Identifier: Apache-2.0
#include "model/regex.h"

#include <gtest/gtest.h>

#include <string>

#include "model/checkpoint_testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// As re.match: from the beginning, to anywhere.
bool matches(const std::string& pattern, const std::string& name) {
  return Regex(pattern).match(name, [](size_t) { return true; });
}
// As re.fullmatch.
bool matches_all(const std::string& pattern, const std::string& name) {
  return Regex(pattern).match(name, [&](size_t end) { return end == name.size(); });
}

TEST(Regex, MatchesAsPython) {
  const struct {
    const char *pattern, *name;
    bool begins, whole;
  } cases[] = {
      {"", "", true, true},
      {"", "abc", true, false},
      {"lm_head", "lm_head", true, true},
      {"lm_head", "model.lm_head", false, false},
      {".*lm_head", "model.lm_head", true, true},
      {".*mlp.gate$", "model.layers.0.mlp.gate", true, true},
      {".*mlp.gate$", "model.layers.0.mlp.gate_proj", false, false},
      {".*self_attn.*", "model.layers.17.self_attn.q_proj", true, true},
      {".*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.gate_up_proj", true, true},
      {".*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.0.mlp.experts.3.up_proj", false,
       false},
      {"model\\.layers\\.\\d+\\.mlp", "model.layers.12.mlp.experts", true, false},
      {"model\\.layers\\.\\d+\\.mlp", "model.layers.x.mlp", false, false},
      {"layers\\.(0|1|2[0-3])\\.", "layers.22.x", true, false},
      {"layers\\.(0|1|2[0-3])\\.", "layers.24.x", false, false},
      {"a|ab|abc", "abc", true, true},
      {"(a|ab)(c|bcd)", "abcd", true, true},
      {"(?:ab)+c", "ababc", true, true},
      {"(?:ab)+c", "c", false, false},
      {"x*", "", true, true},
      {"(a*)*b", "aaaab", true, true},
      {"(a?){3}", "aaa", true, true},
      {"a{2,3}", "aaaa", true, false},
      {"a{2,3}", "a", false, false},
      {"a{,2}b", "aab", true, true},
      {"a{2,}", "aaaaa", true, true},
      {"a{x}", "a{x}", true, true},
      {"a+?b", "aab", true, true},
      {"[^.]+\\.[a-c_]*", "layer.ab_c", true, true},
      {"[]x]", "]", true, true},
      {"[a-]", "-", true, true},
      {"[\\d.]+", "1.25", true, true},
      {"\\w\\W\\s\\S\\D", "a. xx", true, true},
      {"^a$", "a", true, true},
      {"a^b", "ab", false, false},
      {"a.c", "a\nc", false, false},
  };
  for (const auto& [pattern, name, begins, whole] : cases) {
    EXPECT_EQ(matches(pattern, name), begins) << pattern << " on " << name;
    EXPECT_EQ(matches_all(pattern, name), whole) << pattern << " on " << name;
  }
}

// What takes backtracking matchers until the end of time.
TEST(Regex, TakesNoTimeForEvilPatterns) {
  EXPECT_FALSE(matches("(a*)*(a*)*(a*)*(a|a)*b", std::string(2000, 'a')));
  EXPECT_TRUE(matches(std::string(50, '(') + "a" + std::string(50, ')'), "a"));
}

TEST(Regex, RefusesWhatItDoesNotHave) {
  const auto error = [](const std::string& pattern) {
    return error_text<InvalidArgument>([&] { Regex{pattern}; });
  };
  EXPECT_EQ(error("^(?!.*experts).*"), "the pattern '^(?!.*experts).*' has an extension '(?' at 3");
  EXPECT_EQ(error("a)"), "the pattern 'a)' has an unmatched ')' at 1");
  for (const char* pattern : {"(a", "[a", "a\\", "*a", "a**", "a{3,2}", "[b-a]", "\\b", "\\1",
                              "a{9999}", "((a{99}){99}){99}", "(?i)a", "(?<=a)b", "|*"}) {
    EXPECT_NE(error(pattern), "") << pattern;
  }
  EXPECT_NE(error(std::string(51, '(') + std::string(51, ')')), "");
}

}  // namespace
}  // namespace trimtab
