// SPDX-License-Identifier: Apache-2.0
// Loads of NumPy, Trimtab and the engines: what each reader accepts and refuses.
#include <cmath>

#include "files/npy_header.h"
#include "recordings/testing.h"

namespace trimtab {
namespace {

template <class T>
std::string npy(DType dtype, std::vector<int64_t> dims, std::vector<T> values) {
  std::string image = npy_header(dtype, dims);
  return image.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

TEST(ReadNpyLoads, IntegersAndWholeFloats) {
  const std::vector<int64_t> want = {0, 1, 2, 3};
  EXPECT_EQ(
      parse_loads(npy<int32_t>(DType::kI32, {2, 2}, {0, 1, 2, 3}), FileFormat::kNpy).load.counts,
      want);
  EXPECT_EQ(
      parse_loads(npy<uint8_t>(DType::kU8, {2, 2}, {0, 1, 2, 3}), FileFormat::kNpy).load.counts,
      want);
  EXPECT_EQ(parse_loads(npy<double>(DType::kF64, {2, 1, 2}, {0, 1, 2, 3}), FileFormat::kNpy)
                .load.num_steps,
            2);
}

TEST(ReadNpyLoads, Refusals) {
  const auto refused = [](std::string_view text, const std::string& part, int64_t offset = -1) {
    expect_loads_refused(FileFormat::kNpy, text, part, offset);
  };
  refused(npy<int32_t>(DType::kI32, {1, 2}, {0, -1}), "element [0, 1] is -1", 128 + 4);
  refused(npy<uint64_t>(DType::kU64, {1, 2}, {0, uint64_t{1} << 63}),
          "element [0, 1] is 9223372036854775808");
  refused(npy<float>(DType::kF32, {1, 1}, {0.5F}), "element [0, 0] is 0.5");
  refused(npy<float>(DType::kF32, {2, 1, 2}, {0, 0, 0, NAN}), "element [1, 0, 1] is nan");
  refused(npy<double>(DType::kF64, {1, 1}, {1e19}), "no whole number");
  refused(npy<int64_t>(DType::kI64, {1, 2}, {INT64_MAX, 1}), "sum to more");
  refused(npy<int32_t>(DType::kI32, {2}, {0, 1}), "[steps, layers, experts] expected");
  refused(npy<int32_t>(DType::kI32, {1, 1, 1, 1}, {0}), "shape (1, 1, 1, 1)");
  refused(npy<int32_t>(DType::kI32, {0, 4}, {}), "shape (0, 4)");
  refused(npy<uint8_t>(DType::kBool, {1, 1}, {1}), "counts and ids are integers");
  expect_refused<FormatError>(
      [] {
        parse_loads(npy<int32_t>(DType::kI32, {1, 2}, {0, 1}), FileFormat::kNpy,
                    {.num_experts = 3});
      },
      "3 were asked");
}

TEST(ReadJsonLoads, Refusals) {
  const std::string head = R"({"format": "trimtab_loads", "version": 1, )";
  const auto refused = [&](const std::string& rest, const std::string& part, int64_t offset = -1) {
    expect_loads_refused(FileFormat::kJson, head + rest, part, offset);
  };
  EXPECT_EQ(parse_loads(head + R"("logical_count": [[1, 2]]})", FileFormat::kJson).load.num_experts,
            2);
  refused(R"("logical_count": [[1, 2]], "num_experts": 3})", "num_experts is 3; the table has 2");
  refused(R"("logical_count": [[1, 2]], "num_layers": 0})", "out of range");
  refused(R"("logical_count": [[1, -2]]})", "-2 is out of range", 64);
  refused(R"("logical_count": [[1, 2.0]]})", "a whole number expected, not 2.0", 64);
  refused(R"("logical_count": [[1, 2], [3]]})", "a list of 1 after lists of 2");
  refused(R"("logical_count": [[1, 2], 3]})", "lists and numbers mixed");
  refused(R"("logical_count": [1, 2]})", "at least 2 expected");
  refused(R"("logical_count": [[[[1]]]]})", "nested more than 3 deep");
  refused(R"("logical_count": [[]]})", "an empty list");
  refused(R"("logical_count": [[1]], "layer_ids": [0, 1]})", "2 layer_ids for 1 layers");
  refused(R"("logical_count": [[1]], "step_ids": [0, 1]})", "2 step_ids for 1 steps");
  refused(R"("logical_count": [[1], [1]], "layer_ids": [1, 1]})", "must ascend");
  refused(R"("logical_count": [[1]], "slots_per_rank": [1]})", "unknown key \"slots_per_rank\"");
  refused(R"("logical_count": [[1]], "metadata": {"a": 1}})", "a string expected");
  refused(R"("logical_count": [[1]], "logical_count": [[1]]})", "comes twice");
  refused(R"("metadata": {}})", "no key \"logical_count\"");
  refused(R"("logical_count": [[1]]} x)", "something follows");
  expect_loads_refused(FileFormat::kJson, R"({"format": "trimtab_placement"})",
                       "\"trimtab_loads\" expected", 11);
  expect_loads_refused(FileFormat::kJson, R"({"format": "trimtab_loads", "version": 2})",
                       "2 is out of range");
  expect_loads_refused(FileFormat::kJson, R"({"logical_count": [[1]]})", "no key \"format\"");
}

TEST(ReadSglangLoads, Refusals) {
  EXPECT_EQ(shape(parse_loads(R"({"logical_count": [[1, 2]]})", FileFormat::kSglang)),
            (std::vector<int64_t>{1, 1, 2}));
  expect_loads_refused(FileFormat::kSglang, R"({"rank": 0})", "no key logical_count");
  expect_loads_refused(FileFormat::kSglang, R"({"physical_to_logical_map": [[0]]})",
                       "a placement, no loads", 28);
  expect_loads_refused(FileFormat::kSglang, R"({"logical_count": [[null]]})", "a number expected",
                       20);
  expect_loads_refused(FileFormat::kSglang, "{\n\"logical_count\":\n[[1],\n[x]]}",
                       "line 4: a number expected", 26);
}

std::string stats(const std::string& step, const std::string& load, const std::string& map) {
  return R"({"record_type": "eplb_load_stats", "version": 1, "step": )" + step +
         R"(, "expert_load": )" + load + R"(, "p2l_map": )" + map + "}\n";
}

TEST(ReadVllmLoads, SumsReplicasAndSkipsTheToolsMarks) {
  const std::string marks =
      R"({"record_type": "session_metadata", "vllm_argv": ["serve"], "num_runs": null})"
      "\n\n"
      R"({"record_type": "bench_run_start", "run_index": 0})"
      "\n";
  const Recording recording =
      parse_loads(marks + stats("3", "[[3, 7]]", "[[0, 0]]"), FileFormat::kVllm);
  EXPECT_EQ(recording.load.counts, (std::vector<int64_t>{10}));
  EXPECT_EQ(recording.step_ids, (std::vector<int64_t>{3}));
}

TEST(ReadVllmLoads, AnEmptySlotCountsForNoExpert) {
  const Recording recording =
      parse_loads(stats("3", "[[3, 0, 7]]", "[[0, -1, 1]]"), FileFormat::kVllm);
  EXPECT_EQ(recording.load.counts, (std::vector<int64_t>{3, 7}));
  expect_loads_refused(FileFormat::kVllm, stats("3", "[[3, 4, 7]]", "[[0, -1, 1]]"),
                       "layer 0: slot 1 is empty and has 4 tokens");
  expect_loads_refused(FileFormat::kVllm, stats("3", "[[0, 0]]", "[[-1, -1]]"),
                       "no slot holds an expert");
}

TEST(ReadVllmLoads, ALastLineThatWasCutOffIsNamed) {
  const std::string good = stats("1", "[[3, 7]]", "[[0, 1]]");
  const std::string cut = stats("2", "[[3, 7]]", "[[0, 1]]").substr(0, 80);
  expect_loads_refused(FileFormat::kVllm, good + cut,
                       "line 2: the file ends within this record, whose writing was interrupted");
  // A writer that was started again has appended to it.
  expect_loads_refused(FileFormat::kVllm, good + cut + stats("3", "[[3, 7]]", "[[0, 1]]"),
                       "line 2: ");
  EXPECT_EQ(parse_loads(good.substr(0, good.size() - 1), FileFormat::kVllm).load.num_steps, 1);
}

TEST(ReadVllmLoads, Refusals) {
  const auto refused = [](const std::string& text, const std::string& part, int64_t offset = -1) {
    expect_loads_refused(FileFormat::kVllm, text, part, offset);
  };
  const std::string good = stats("1", "[[3, 7]]", "[[0, 1]]");
  const auto size = static_cast<int64_t>(good.size());
  const std::string meta = R"({"record_type": "eplb_load_meta", "version": 1, "num_layers": 2})"
                           "\n";
  refused("", "no eplb_load_stats record");
  refused(good + stats("1", "[[3, 7]]", "[[0, 1]]"), "line 2: step 1 after 1", size);
  refused(good + stats("2", "[[3, 7, 1]]", "[[0, 1, 2]]"),
          "line 2: 1 layers of 3 experts; the first step has", size);
  refused(stats("1", "[[3, 7]]", "[[0, 1], [0, 1]]"), "expert_load is [1, 2], p2l_map [2, 2]", 0);
  refused(stats("1", "[[3, 7]]", "[[0, 2]]"), "p2l_map: expert 2 in 2 slots");
  refused(stats("1", "[[3, -7]]", "[[0, 1]]"), "-7 is out of range");
  refused(stats("1", "[[9223372036854775807, 1]]", "[[0, 0]]"), "sum to more than 63 bits");
  refused(stats("-1", "[[3]]", "[[0]]"), "step -1");
  refused(stats("\"3\"", "[[3]]", "[[0]]"), "no step");
  refused(good.substr(0, good.size() - 4), "line 1: ");  // killed while it wrote
  refused(meta, "no eplb_load_stats record");
  refused(meta + meta, "line 2: eplb_load_meta must come once");
  refused(good + meta, "line 2: eplb_load_meta must come once, and first", size);
  refused(meta + good, "1 layers; eplb_load_meta says 2");
  refused(R"({"record_type": "garbage", "version": 1})", "record_type \"garbage\"");
  refused(R"({"record_type": "eplb_load_stats", "version": 2})", "version 1 expected");
  refused(R"({"record_type": "eplb_load_stats", "version": 1, "step": 1})",
          "no expert_load or no p2l_map");
}

std::string safetensors(std::string header, const std::string& data) {
  std::string image;
  for (size_t byte = 0; byte < 8; ++byte)
    image += static_cast<char>(header.size() >> (8 * byte) & 0xff);
  return image + header + data;
}

TEST(ReadTrtllmLoads, Refusals) {
  const auto refused = [](const std::string& header, const std::string& data,
                          const std::string& part, int64_t offset = -1) {
    expect_loads_refused(FileFormat::kTrtllm, safetensors(header, data), part, offset);
  };
  const std::string one(4, '\1');
  refused("{}", "", "no statistics");
  refused(R"({"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})", one,
          "tensor a: a name {iteration}_{layer}", 62);
  refused(R"({"1_-2":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})", one,
          "a name {iteration}_{layer}");
  refused(R"({"1_2":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", one,
          "tensor 1_2: whole numbers expected");
  refused(R"({"1_2":{"dtype":"I32","shape":[1,1,1],"data_offsets":[0,4]}})", one,
          "a shape [experts] expected");
  refused(R"({"1_2":{"dtype":"I32","shape":[0],"data_offsets":[0,0]}})", "",
          "a shape [experts] expected");
  refused(R"({"1_2":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})", std::string(4, '\xff'),
          "expert 0: the count");
  refused(R"({"1_2":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},)"
          R"("1_3":{"dtype":"I16","shape":[2],"data_offsets":[4,8]}})",
          one + one, "2 experts; others have 1");
  refused(R"({"1_2":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},)"
          R"("01_2":{"dtype":"I32","shape":[1],"data_offsets":[4,8]}})",
          one + one, "the same as 01_2");
  refused(R"({"1_2":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},)"
          R"("2_3":{"dtype":"I32","shape":[1],"data_offsets":[4,8]}})",
          one + one, "no counts of layer 3 in iteration 1");
}

}  // namespace
}  // namespace trimtab
