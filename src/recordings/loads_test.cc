// SPDX-License-Identifier: Apache-2.0
// Loads: what each engine writes, round trips, and every refusal.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "files/npy_header.h"
#include "recordings/testing.h"

namespace trimtab {
namespace {

namespace fs = std::filesystem;
constexpr FileFormat kWritten[] = {FileFormat::kJson,   FileFormat::kNpy,    FileFormat::kCsv,
                                   FileFormat::kSglang, FileFormat::kTrtllm, FileFormat::kVllm};

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "trimtab_formats_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string operator/(const char* name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

// 100 step + 10 layer + expert, as the fixtures.
std::vector<int64_t> fixture_counts(int steps) {
  std::vector<int64_t> counts;
  for (int s = 0; s < steps; ++s) {
    for (int l = 0; l < 2; ++l) {
      for (int e = 0; e < 4; ++e) counts.push_back(100 * s + 10 * l + e);
    }
  }
  return counts;
}

Recording some_recording(int64_t steps = 2) {
  Recording recording;
  recording.load = {steps, 2, 4, fixture_counts(static_cast<int>(steps))};
  recording.layer_ids = {3, 5};
  for (int64_t s = 0; s < steps; ++s) recording.step_ids.push_back(50 + 2 * s);
  recording.metadata = {{"model", "a \"quoted\"\n\\ name"}, {"num_experts_per_token", "2"}};
  recording.file = "some";
  return recording;
}

struct Golden {
  const char* file;
  std::vector<int64_t> steps;
  std::vector<int> layers;
};

TEST(ReadLoads, WhatTheEnginesWrite) {
  for (const Golden& golden :
       {Golden{"sglang_stat.json", {0, 1}, {0, 1}}, Golden{"trtllm_statistics", {50, 51}, {3, 4}},
        Golden{"vllm_stats.jsonl", {7, 8}, {0, 1}}, Golden{"vllm_stats_meta.jsonl", {7, 8}, {0, 1}},
        Golden{"steps.csv", {0, 1}, {0, 1}}, Golden{"sglang_users.csv", {0}, {0, 1}},
        Golden{"deepseek_weight.npy", {0}, {0, 1}}}) {
    SCOPED_TRACE(golden.file);
    const Recording recording = read_recording(kFixtures + golden.file);
    const auto steps = static_cast<int64_t>(golden.steps.size());
    EXPECT_EQ(shape(recording), (std::vector<int64_t>{steps, 2, 4}));
    EXPECT_EQ(recording.load.counts, fixture_counts(static_cast<int>(steps)));
    EXPECT_EQ(recording.layer_ids, golden.layers);
    EXPECT_EQ(recording.step_ids, golden.steps);
  }
  EXPECT_EQ(read_recording(kFixtures + "vllm_stats_meta.jsonl").metadata.at("model"), "test-model");
  EXPECT_EQ(read_recording(kFixtures + "trtllm_statistics").metadata.at("num_experts_per_token"),
            "2");
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

TEST(WriteLoads, ReadBackInEveryFormat) {
  for (const FileFormat format : kWritten) {
    SCOPED_TRACE(name(format));
    const Recording out = some_recording();
    const std::string image = serialize_recording(out, format);
    const DetectedFile detected = detect_format(bytes_of(image), "some");
    EXPECT_EQ(detected.format, format);
    EXPECT_NE(detected.kind, FileKind::kPlacement);
    const Recording back = parse_recording(bytes_of(image), "some");
    EXPECT_EQ(shape(back), shape(out));
    EXPECT_EQ(back.load.counts, out.load.counts);
    const bool keeps_layers =
        format == FileFormat::kJson || format == FileFormat::kCsv || format == FileFormat::kTrtllm;
    EXPECT_EQ(back.layer_ids, keeps_layers ? out.layer_ids : (std::vector<int>{0, 1}));
    const bool keeps_steps = keeps_layers || format == FileFormat::kVllm;
    EXPECT_EQ(back.step_ids, keeps_steps ? out.step_ids : (std::vector<int64_t>{0, 1}));
    if (format == FileFormat::kJson) {
      EXPECT_EQ(back.metadata, out.metadata);
    }
  }
}

TEST(WriteLoads, FilesAndFolders) {
  const Folder folder;
  write_recording(folder / "a.json", some_recording(), FileFormat::kJson);
  EXPECT_EQ(read_recording(folder / "a.json").load.counts, some_recording().load.counts);
  write_recording(folder / "statistics", some_recording(), FileFormat::kTrtllm);
  EXPECT_EQ(read_recording(folder / "statistics").load.counts, some_recording().load.counts);
  EXPECT_EQ(read_recording(folder / "statistics/rank0.safetensors").load.counts,
            some_recording().load.counts);

  Recording unknown = some_recording();
  unknown.metadata.clear();
  expect_refused<InvalidArgument>(
      [&] { write_recording(folder / "b", unknown, FileFormat::kTrtllm); },
      "num_experts_per_token");
  expect_refused<InvalidArgument>([&] { serialize_recording(unknown, FileFormat::kTopK); },
                                  "read only");
  expect_refused<InvalidArgument>([&] { serialize_recording(unknown, FileFormat::kVllmAscend); },
                                  "has no loads");
  unknown.load.counts.pop_back();
  expect_refused<InvalidArgument>([&] { serialize_recording(unknown, FileFormat::kJson); },
                                  "15 counts");
  EXPECT_THROW(read_recording(folder / "absent"), Error);
}

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
  refused(stats("-1", "[[3]]", "[[0]]"), "no step");
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
  refused(R"({"1_2":{"dtype":"I32","shape":[1,1],"data_offsets":[0,4]}})", one,
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

TEST(ReadTrtllmLoads, FoldersThatAreIncomplete) {
  const Folder folder;
  const std::string path = folder / "statistics";
  write_recording(path, some_recording(), FileFormat::kTrtllm);
  fs::copy_file(path + "/rank0.safetensors", path + "/rank2.safetensors");
  expect_refused<FormatError>([&] { read_recording(path); }, "rank1.safetensors is missing");
  fs::rename(path + "/rank2.safetensors", path + "/rank1.safetensors");
  EXPECT_EQ(read_recording(path).load.counts.back(),
            2 * some_recording().load.counts.back());  // summed
  std::ofstream(path + "/meta_info.json") << R"({"num_experts": 5, "num_experts_per_token": 2})";
  expect_refused<FormatError>([&] { read_recording(path); }, "num_experts is 5; the ranks have 4");
  std::ofstream(path + "/meta_info.json") << R"({"num_experts": 4})";
  expect_refused<FormatError>([&] { read_recording(path); }, "no key \"num_experts_per_token\"");
  fs::remove(path + "/meta_info.json");
  EXPECT_THROW(read_recording(path), Error);
  expect_refused<InvalidArgument>([&] { read_recording(path, {.format = FileFormat::kCsv}); },
                                  "a folder");
}

TEST(MergeRecordings, SumsWhatMatches) {
  const Recording part = some_recording();
  const std::vector<Recording> parts(3, part);
  const Recording sum = merge_recordings(parts);
  for (size_t i = 0; i < part.load.counts.size(); ++i)
    EXPECT_EQ(sum.load.counts[i], 3 * part.load.counts[i]);
  EXPECT_EQ(sum.layer_ids, part.layer_ids);
}

TEST(MergeRecordings, Refusals) {
  const auto refused = [](const std::function<void(Recording&)>& change, const std::string& part) {
    std::vector<Recording> parts(2, some_recording());
    parts[1].file = "other";
    change(parts[1]);
    expect_refused<InvalidArgument>([&] { merge_recordings(parts); }, part);
  };
  expect_refused<InvalidArgument>([] { merge_recordings({}); }, "no recordings");
  refused(
      [](Recording& r) {
        r = some_recording(1);
        r.file = "other";
      },
      "can't merge some and other: [steps");
  refused([](Recording& r) { r.layer_ids = {3, 4}; }, "some and other: their layers differ");
  refused([](Recording& r) { r.step_ids = {3, 4}; }, "their steps differ");
  refused([](Recording& r) { r.load.counts[5] = INT64_MAX; }, "a sum exceeds 63 bits");
  refused([](Recording& r) { r.load.counts[0] = INT64_MAX; }, "sum to more than 63 bits hold");
  refused([](Recording& r) { r.load.counts[0] = -1; }, "a count of -1");
}

}  // namespace
}  // namespace trimtab
