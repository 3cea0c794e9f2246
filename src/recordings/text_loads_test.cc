// SPDX-License-Identifier: Apache-2.0
// Loads as text: comma-separated values and the choices of each token.
#include "recordings/testing.h"

namespace trimtab {
namespace {

TEST(WriteLoads, CsvOfOneStepHasThreeColumns) {
  Recording recording = some_recording(1);
  recording.step_ids = {0};
  EXPECT_EQ(serialize_recording(recording, FileFormat::kCsv).substr(0, 32),
            "layer,expert,count\n3,0,0\n3,1,1\n3");
}

TEST(ReadCsv, AcceptsWhatPeopleWrite) {
  const Recording sparse = parse_loads("0, 5, 7\r\n\r\n2,1,9", FileFormat::kCsv);
  EXPECT_EQ(shape(sparse), (std::vector<int64_t>{1, 2, 6}));
  EXPECT_EQ(sparse.layer_ids, (std::vector<int>{0, 2}));
  EXPECT_EQ(sparse.load.counts, (std::vector<int64_t>{0, 0, 0, 0, 0, 7, 0, 9, 0, 0, 0, 0}));
  EXPECT_EQ(parse_loads("0,5,7\n", FileFormat::kCsv, {.num_experts = 8}).load.num_experts, 8);
}

TEST(ReadCsv, Refusals) {
  const auto refused = [](std::string_view text, const std::string& part, int64_t offset = -1) {
    expect_loads_refused(FileFormat::kCsv, text, part, offset);
  };
  refused("", "no counts");
  refused("layer,expert,count\n", "no counts");
  refused("0,1\n", "line 1: layer,expert,count or", 0);
  refused("0,1,2\n0,1,2,3\n", "line 2: 4 columns", 6);
  refused("0,1,2\n0,1,3\n", "line 2: step 0, layer 0, expert 1 stands in line 1", 6);
  refused("0,1,-2\n", "line 1: count -2 is out of range", 4);
  refused("0,1,9223372036854775808\n", "out of range", 4);
  refused("0,1,2.5\n", "a whole number expected, not '2.5'", 4);
  refused("0,1,\n", "a whole number expected", 4);
  refused("0,1152921504606846976,1\n", "expert 1152921504606846976 is out of range",
          2);  // 2^60: no allocation
  refused("0,1048575,1\n1048575,0,1\n5,0,1\n", "too few to be a recording");
  refused("0,0,9223372036854775807\n0,1,1\n", "step 0, layer 0, expert 1 sum to more");
  refused("layers,expert,count\n0,1,2\n", "line 1: layer: a whole number expected");
  expect_refused<FormatError>([] { parse_loads("0,5,7\n", FileFormat::kCsv, {.num_experts = 5}); },
                              "expert 5 of 5", 0);
}

TEST(ReadLoads, TopKTextBySampleAndByTokens) {
  const std::string path = kFixtures + "trace.topk.txt";
  const Recording samples = read_recording(path);
  EXPECT_EQ(shape(samples), (std::vector<int64_t>{2, 2, 4}));
  EXPECT_EQ(samples.load.counts,
            (std::vector<int64_t>{2, 2, 0, 0, 0, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 1}));
  const Recording windows = read_recording(path, {.tokens_per_step = 2});
  EXPECT_EQ(windows.load.counts, samples.load.counts);
  const Recording all = read_recording(path, {.tokens_per_step = 100});
  EXPECT_EQ(all.load.counts, (std::vector<int64_t>{3, 2, 0, 1, 0, 1, 2, 3}));
  EXPECT_EQ(read_recording(path, {.tokens_per_step = 1}).load.num_steps, 3);
  EXPECT_EQ(parse_loads("3 1|0 2\n", FileFormat::kTopK).load.num_steps, 1);  // no head, no samples
  EXPECT_EQ(parse_loads("3 1|0 2\n", FileFormat::kTopK, {.num_experts = 9}).load.num_experts, 9);
}

TEST(ReadLoads, TopKTextsOneBehindTheOther) {
  const std::string part = "# layers=2 experts=3 samples=1 tokens=2\nS 0 2\n0 1|1 2\n1 0|2 1\n";
  const Recording both = parse_loads(part + part, FileFormat::kTopK);
  EXPECT_EQ(both.load.counts, (std::vector<int64_t>{2, 2, 0, 0, 2, 2, 2, 2, 0, 0, 2, 2}));
  EXPECT_EQ(both.load.num_steps, 2);
  const auto refused = [&](const std::string& head, const std::string& why) {
    expect_loads_refused(FileFormat::kTopK, part + head + part.substr(part.find('\n') + 1), why);
  };
  refused("# layers=1 experts=3\n", "2 layers; the head says 1");
  refused("# layers=2 experts=4\n", "another number of experts");
  refused("# layers=2 experts=3 tokens=4\n", "2 tokens; the head says 4");
  refused("# no head\n", "sample 1 expected");
  expect_loads_refused(FileFormat::kTopK, part.substr(0, part.size() - 8) + part,
                       "sample 0 has 1 tokens of 2");
}

TEST(ReadTopK, Refusals) {
  const auto refused = [](std::string_view text, const std::string& part, int64_t offset = -1) {
    expect_loads_refused(FileFormat::kTopK, text, part, offset);
  };
  refused("# nothing\n", "no tokens");
  refused("0 1|2 2\n", "line 1: layer 1 has expert 2 twice", 6);
  refused("0 1|2\n", "layer 1 has not 2 experts", 4);
  refused("0 1|2 3 4\n", "layer 1 has not 2 experts", 4);
  refused("0 1|2 3\n0 1\n", "line 2: 1 layers; the first token has 2", 8);
  refused("0 -1\n", "expert -1 is out of range", 2);
  refused("0 x\n", "a whole number expected", 2);
  refused("|\n", "a layer without experts", 0);
  refused("S 0 2\n0 1\n", "sample 0 has 1 tokens of 2");
  refused("S 0 1\n0 1\n2 3\n", "line 3: a token more", 10);
  refused("S 1 1\n0 1\n", "sample 0 expected", 0);
  refused("S 0 0\n", "without tokens", 0);
  refused("S 0\n0 1\n", "S <sample> <tokens> expected", 0);
  refused("# layers=2 experts=4\n0 1\n", "1 layers; the head says 2");
  refused("# topk=1\n0 1\n", "2 topk; the head says 1");
  refused("# experts=2\n0 2\n", "expert 2 is out of range");
  refused("# tokens=2\n0 1\n", "1 tokens; the head says 2");
  refused("# samples=2\n0 1\n", "1 samples; the head says 2");
  refused("# experts=x\n0 1\n", "line 1: experts: a whole number", 10);
  refused("# experts=1048576\n0 1|0 1|0 1\n", "too few to be a recording");
  expect_refused<InvalidArgument>(
      [] { parse_loads("0 1\n", FileFormat::kTopK, {.tokens_per_step = -1}); }, "-1");
  expect_refused<FormatError>([] { parse_loads("0 7\n", FileFormat::kTopK, {.num_experts = 7}); },
                              "expert 7 of 7");
}

}  // namespace
}  // namespace trimtab
