// SPDX-License-Identifier: Apache-2.0
// Loads of all formats: what the engines write, round trips, folders and sums over ranks.
#include <filesystem>
#include <fstream>

#include "recordings/testing.h"

namespace trimtab {
namespace {

namespace fs = std::filesystem;

constexpr FileFormat kWritten[] = {FileFormat::kJson,   FileFormat::kNpy,    FileFormat::kCsv,
                                   FileFormat::kSglang, FileFormat::kTrtllm, FileFormat::kVllm};

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

TEST(WriteLoads, PhasesOfStepsStandInTrimtabsJson) {
  Recording out = some_recording(3);
  out.phases = {Phase::kPrefill, Phase::kDecode, Phase::kDecode};
  const std::string image = serialize_recording(out, FileFormat::kJson);
  const Recording back = parse_recording(bytes_of(image), "some");
  EXPECT_EQ(back.phases, out.phases);
  const Recording decode = steps_of_phase(back, Phase::kDecode);
  EXPECT_EQ(shape(decode), (std::vector<int64_t>{2, 2, 4}));
  EXPECT_TRUE(std::ranges::equal(decode.load.at(0, 1), out.load.at(1, 1)));
  EXPECT_TRUE(std::ranges::equal(decode.load.at(1, 0), out.load.at(2, 0)));
  EXPECT_EQ(decode.step_ids, (std::vector<int64_t>{out.step_ids[1], out.step_ids[2]}));
  EXPECT_EQ(decode.phases, (std::vector<Phase>{Phase::kDecode, Phase::kDecode}));
  EXPECT_EQ(steps_of_phase(back, Phase::kPrefill).load.num_steps, 1);
  expect_refused<InvalidArgument>([&] { steps_of_phase(decode, Phase::kPrefill); },
                                  "some has no step of phase prefill");
  expect_refused<InvalidArgument>([&] { steps_of_phase(some_recording(), Phase::kDecode); },
                                  "does not say which of its steps read prompts");
  // Ranks that record the same steps call them the same.
  const Recording parts[] = {out, some_recording(3)};
  expect_refused<InvalidArgument>([&] { merge_recordings(parts); }, "phases of their steps differ");
  out.phases.pop_back();
  expect_refused<InvalidArgument>([&] { serialize_recording(out, FileFormat::kJson); },
                                  "2 phases of 3 steps");
  const auto read = [](const std::string& phases) {
    const std::string text = R"({"format": "trimtab_loads", "version": 1, "phases": )" + phases +
                             R"(, "logical_count": [[[1, 2]], [[3, 4]]]})";
    parse_recording(bytes_of(text), "some");
  };
  EXPECT_NO_THROW(read("[1, 0]"));
  expect_refused<FormatError>([&] { read("[1]"); }, "1 phases for 2 steps");
  expect_refused<FormatError>([&] { read("[1, 2]"); }, "2 is out of range");
}

TEST(WriteLoads, FilesAndFolders) {
  const TestFolder folder;
  write_recording(folder.path("a.json"), some_recording(), FileFormat::kJson);
  EXPECT_EQ(read_recording(folder.path("a.json")).load.counts, some_recording().load.counts);
  write_recording(folder.path("statistics"), some_recording(), FileFormat::kTrtllm);
  EXPECT_EQ(read_recording(folder.path("statistics")).load.counts, some_recording().load.counts);
  EXPECT_EQ(read_recording(folder.path("statistics/rank0.safetensors")).load.counts,
            some_recording().load.counts);

  // The files of an engine's other ranks would be summed with what is written.
  fs::copy_file(folder.path("statistics/rank0.safetensors"),
                folder.path("statistics/rank1.safetensors"));
  expect_refused<InvalidArgument>(
      [&] { write_recording(folder.path("statistics"), some_recording(), FileFormat::kTrtllm); },
      "holds rank1.safetensors already");

  Recording unknown = some_recording();
  unknown.metadata.clear();
  expect_refused<InvalidArgument>(
      [&] { write_recording(folder.path("b"), unknown, FileFormat::kTrtllm); },
      "num_experts_per_token");
  expect_refused<InvalidArgument>([&] { serialize_recording(unknown, FileFormat::kTopK); },
                                  "read only");
  expect_refused<InvalidArgument>([&] { serialize_recording(unknown, FileFormat::kVllmAscend); },
                                  "vllm-ascend is read only for loads; json, npy");
  unknown.load.counts.pop_back();
  expect_refused<InvalidArgument>([&] { serialize_recording(unknown, FileFormat::kJson); },
                                  "15 counts");
  EXPECT_THROW(read_recording(folder.path("absent")), Error);
}

TEST(ReadTrtllmLoads, FoldersThatAreIncomplete) {
  const TestFolder folder;
  const std::string path = folder.path("statistics");
  write_recording(path, some_recording(), FileFormat::kTrtllm);
  fs::copy_file(path + "/rank0.safetensors", path + "/rank2.safetensors");
  expect_refused<FormatError>([&] { read_recording(path); }, "rank1.safetensors is missing");
  fs::rename(path + "/rank2.safetensors", path + "/rank1.safetensors");
  EXPECT_EQ(read_recording(path).load.counts.back(),
            2 * some_recording().load.counts.back());  // summed
  Recording shorter = some_recording(1);
  shorter.step_ids = {50};
  const std::string rank1 = serialize_recording(shorter, FileFormat::kTrtllm);
  std::ofstream(path + "/rank1.safetensors") << rank1;
  expect_refused<FormatError>(
      [&] { read_recording(path); },
      "rank1.safetensors: no counts of layer 3 in iteration 52, which the ranks before have");
  fs::copy_file(path + "/rank0.safetensors", path + "/rank1.safetensors",
                fs::copy_options::overwrite_existing);
  std::ofstream(path + "/rank0.safetensors") << rank1;
  expect_refused<FormatError>([&] { read_recording(path); },
                              "tensor 52_3: the ranks before have no such counts");
  fs::remove(path + "/rank0.safetensors");
  fs::rename(path + "/rank1.safetensors", path + "/rank0.safetensors");
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
