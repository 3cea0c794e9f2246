// SPDX-License-Identifier: Apache-2.0
#include "trimtab/cost_file.h"

#include <gtest/gtest.h>

#include "base/test_folder.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

std::vector<MeasuredCost> two_costs() {
  return {{.shape = "qwen3-30b",
           .hidden = 2048,
           .intermediate = 768,
           .weights = "bf16",
           .isa = "avx512_bf16",
           .threads = 1,
           .cost = CostModel({{1, 307'000'000}, {16, 330'000'000}, {64, 1'200'000'000}})},
          {.shape = "one \"quoted\"",
           .hidden = 64,
           .intermediate = 32,
           .weights = "w8a8",
           .isa = "scalar",
           .threads = 2,
           .cost = CostModel({{4, 5}}, {1000, 500}, 12)}};
}

std::string refusal(std::string text) {
  try {
    parse_costs(text, "c.json");
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

std::string with_entry(const std::string& entry) {
  return R"({"format": "trimtab_costs", "version": 1, "costs": [)" + entry + "]}";
}
constexpr const char* kEntry =
    R"({"hidden": 8, "intermediate": 4, "weights": "f32", "isa": "avx2", "threads": 1, )"
    R"("points": [[1, 2]]})";

TEST(CostFile, ReadsWhatItWrote) {
  const TestFolder folder;
  const std::string path = folder.path("costs.json");
  const auto written = two_costs();
  write_costs(path, written);
  const auto read = read_costs(path);
  ASSERT_EQ(read.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read[i].shape, written[i].shape);
    EXPECT_EQ(read[i].hidden, written[i].hidden);
    EXPECT_EQ(read[i].intermediate, written[i].intermediate);
    EXPECT_EQ(read[i].weights, written[i].weights);
    EXPECT_EQ(read[i].isa, written[i].isa);
    EXPECT_EQ(read[i].threads, written[i].threads);
    EXPECT_EQ(read[i].cost.fingerprint(), written[i].cost.fingerprint());
  }
  EXPECT_EQ(serialize_costs(read), serialize_costs(written));
}

TEST(CostFile, NamesWhatIsWrongAndWhere) {
  EXPECT_EQ(refusal(with_entry(kEntry)), "");
  const auto expect_refusal = [](const std::string& text, const char* what) {
    EXPECT_NE(refusal(text).find(what), std::string::npos) << refusal(text);
  };
  expect_refusal(R"({"format": "trimtab_loads", "version": 1, "costs": []})",
                 "format is \"trimtab_loads\"; \"trimtab_costs\" expected");
  expect_refusal(R"({"format": "trimtab_costs", "version": 2, "costs": []})", "2");
  expect_refusal(R"({"costs": []})", "no key \"format\" or \"version\"");
  expect_refusal(with_entry(""), "no costs");
  expect_refusal(R"({"format": "trimtab_costs", "version": 1, "cost": []})",
                 "unknown key \"cost\"");
  const auto changed = [](std::string from, const std::string& to) {
    std::string entry = kEntry;
    entry.replace(entry.find(from), from.size(), to);
    return with_entry(entry);
  };
  expect_refusal(changed("\"isa\"", "\"level\""), "unknown key \"level\"");
  expect_refusal(changed("\"threads\": 1, ", ""), "a cost without \"threads\"");
  expect_refusal(changed("[[1, 2]]", "[[1, 2], [1, 3]]"), "cost point 1 is at 1 rows");
  expect_refusal(changed("[[1, 2]]", "[[1, 2, 3]]"), "points are pairs of rows and picoseconds");
  expect_refusal(changed("[[1, 2]]", "[[1, -2]]"), "-2");
  expect_refusal(changed("[[1, 2]]", "[[1, 2]], \"speeds\": [1000, 0]"), "rank 1 has speed 0");
  expect_refusal(with_entry(kEntry) + "x", "byte");
}

TEST(CostFile, FindsTheCostThatWasMeasuredForIt) {
  const auto costs = two_costs();
  const WantedCost wanted = {
      .hidden = 64, .intermediate = 32, .weights = "w8a8", .isa = "scalar", .threads = 2};
  EXPECT_EQ(&find_cost(costs, wanted, "c.json"), &costs[1]);
  WantedCost other = wanted;
  other.threads = 1;
  try {
    find_cost(costs, other, "c.json");
    ADD_FAILURE();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "c.json has no cost of w8a8 experts of 64 x 32 with scalar on 1 thread; it has "
                 "bf16 experts of 2048 x 768 with avx512_bf16 on 1 thread; w8a8 experts of 64 x 32 "
                 "with scalar on 2 threads");
  }
}

}  // namespace
}  // namespace trimtab
