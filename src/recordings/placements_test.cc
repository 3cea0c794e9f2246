// SPDX-License-Identifier: Apache-2.0
// Placements of all formats: what the engines write, round trips, ranks and experts.
#include "recordings/testing.h"

namespace trimtab {
namespace {

constexpr FileFormat kEngines[] = {FileFormat::kNpy, FileFormat::kSglang, FileFormat::kTrtllm,
                                   FileFormat::kVllm, FileFormat::kVllmAscend};

TEST(ReadPlacement, WhatTheEnginesWrite) {
  for (const auto& [file, first_layer] : {std::pair("sglang_location.json", 0),
                                          {"trtllm_placement.yaml", 3},
                                          {"trtllm_block.yaml", 3},
                                          {"vllm_mapping.jsonl", 0},
                                          {"vllm_ascend_expert_map.json", 0},
                                          {"deepseek_phy2log.npy", 0}}) {
    SCOPED_TRACE(file);
    const PlacementFile read = read_placement(kFixtures + file, {.num_ranks = 2});
    EXPECT_EQ(rows(read.placement), kRows);
    EXPECT_EQ(read.placement.num_experts(), 4);
    EXPECT_EQ(read.placement.slots_of_rank(1), 3);
    EXPECT_EQ(read.layer_ids, (std::vector<int>{first_layer, first_layer + 1}));
  }
  const PlacementFile folded = read_placement(kFixtures + "trtllm_folded.yaml", {.num_ranks = 8});
  EXPECT_EQ(folded.placement.num_slots(), 40);
  EXPECT_EQ(folded.placement.logical(0)[39], 39);
  EXPECT_EQ(read_placement(kFixtures + "vllm_ascend_expert_map.json").placement.num_ranks(),
            2);  // says it itself
}

TEST(WritePlacement, ReadBackInEveryFormat) {
  for (const FileFormat format : kEngines) {
    SCOPED_TRACE(name(format));
    PlacementFile out = some_placement();
    if (format == FileFormat::kSglang) out.layer_ids = {0, 1};
    const std::string image = serialize_placement(out, format);
    const DetectedFile detected = detect_format(bytes_of(image), "some");
    EXPECT_EQ(detected.format, format);
    EXPECT_NE(detected.kind, FileKind::kLoads);
    const PlacementFile back = parse_placement(bytes_of(image), "some", {.num_ranks = 2});
    EXPECT_EQ(rows(back.placement), kRows);
    const bool keeps_layers = format == FileFormat::kTrtllm || format == FileFormat::kVllmAscend;
    EXPECT_EQ(back.layer_ids, keeps_layers ? out.layer_ids : (std::vector<int>{0, 1}));
    expect_refused<InvalidArgument>(
        [&] {
          serialize_placement(some_placement({2, 4}),
                              format == FileFormat::kNpy ? FileFormat::kSglang : format);
        },
        "equal slots on all ranks; rank 0 has 2, rank 1 has 4");
  }
  for (const FileFormat format : {FileFormat::kCsv, FileFormat::kTopK}) {
    expect_refused<InvalidArgument>([&] { serialize_placement(some_placement(), format); },
                                    "has no placements");
  }
}

// SGLang has a row for every layer of the model: its row 0 is layer 0.
TEST(WritePlacement, SglangsRowsAreTheLayersFrom0) {
  expect_refused<InvalidArgument>(
      [] { serialize_placement(some_placement(), FileFormat::kSglang); },
      "SGLang takes row 0 for layer 0");
}

TEST(WritePlacement, OurJsonKeepsEverything) {
  const PlacementFile out = some_placement({2, 4});
  const std::string image = serialize_placement(out, FileFormat::kJson);
  const PlacementFile back = parse_placement(bytes_of(image), "some");
  EXPECT_EQ(rows(back.placement), kRows);
  EXPECT_EQ(back.placement.slots_of_rank(0), 2);
  EXPECT_EQ(back.layer_ids, out.layer_ids);
  EXPECT_EQ(back.metadata, out.metadata);
  EXPECT_EQ(rows(parse_some_placement(image, FileFormat::kSglang).placement),
            kRows);  // SGLang finds its key in it
}

TEST(WritePlacement, ExactlyAsTheEngineDoes) {
  EXPECT_EQ(serialize_placement(some_placement(), FileFormat::kTrtllm),
            "initial_global_assignments:\n  3: [0, 1, 2, 3, 0, 1]\n  4: [3, 2, 0, 1, 0, 3]\n"
            "layer_updates_per_iter: 0\nnum_slots: 6\n");
  EXPECT_EQ(serialize_placement(some_placement(), FileFormat::kVllm),
            R"({"record_type": "eplb_initial_mapping", "version": 1, "num_redundant_experts": 2, )"
            R"("num_slots": 6, )"
            R"("initial_global_assignments": {"0": [0, 1, 2, 3, 0, 1], "1": [3, 2, 0, 1, 0, 3]}})"
            "\n");
}

TEST(ReadPlacement, RanksAndExperts) {
  const std::string text = R"({"physical_to_logical_map": [[0, 1, 2, 0]]})";
  const auto read = [&](PlacementOptions options) {
    return parse_some_placement(text, FileFormat::kSglang, std::move(options));
  };
  EXPECT_EQ(read({.slots_per_rank = {1, 3}}).placement.slots_of_rank(1), 3);
  expect_refused<InvalidArgument>([&] { read({}); }, "does not say of how many ranks");
  expect_refused<InvalidArgument>([&] { read({.num_ranks = 3}); },
                                  "4 slots a layer do not divide over 3 ranks");
  expect_refused<InvalidArgument>([&] { read({.slots_per_rank = {1, 2}}); },
                                  "4 slots a layer; the ranks have 3");
  expect_refused<InvalidArgument>([&] { read({.slots_per_rank = {5, -1}}); }, "the ranks have 5");
  expect_refused<FormatError>([&] { read({.num_ranks = 2, .num_experts = 4}); },
                              "layer 0: no slot holds expert 3", 29);
  expect_refused<FormatError>([&] { read({.num_ranks = 2, .num_experts = 2}); },
                              "slot 2 holds expert 2 of 2", 29);
  expect_refused<FormatError>([&] { read({.num_ranks = 2, .num_experts = 5}); },
                              "4 slots for 5 experts");
  const std::string ours = serialize_placement(some_placement(), FileFormat::kJson);
  for (const FileFormat format : {FileFormat::kJson, FileFormat::kVllmAscend}) {
    const std::string image = serialize_placement(some_placement(), format);
    expect_refused<InvalidArgument>([&] { parse_some_placement(image, format, {.num_ranks = 3}); },
                                    "on 2 ranks; asked for 3");
    expect_refused<InvalidArgument>(
        [&] { parse_some_placement(image, format, {.slots_per_rank = {2, 4}}); },
        "not those asked for");
  }
}

}  // namespace
}  // namespace trimtab
