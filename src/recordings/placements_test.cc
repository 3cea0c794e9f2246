// SPDX-License-Identifier: Apache-2.0
// Placements: what each engine writes, round trips, every refusal; and how formats are told apart.
#include <algorithm>

#include "recordings/json_reader.h"
#include "recordings/testing.h"

namespace trimtab {
namespace {

using std::string_view_literals::operator""sv;
using Rows = std::vector<std::vector<int32_t>>;
constexpr FileFormat kEngines[] = {FileFormat::kNpy, FileFormat::kSglang, FileFormat::kTrtllm,
                                   FileFormat::kVllm, FileFormat::kVllmAscend};
const Rows kRows = {{0, 1, 2, 3, 0, 1}, {3, 2, 0, 1, 0, 3}};

PlacementFile some_placement(std::vector<int> slots = {3, 3}) {
  std::vector<int32_t> logical = kRows[0];
  logical.insert(logical.end(), kRows[1].begin(), kRows[1].end());
  return {Placement(2, 4, std::move(slots), std::move(logical)), {3, 4}, {{"policy", "trim"}}};
}

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
    const PlacementFile out = some_placement();
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

TEST(WritePlacement, OurJsonKeepsEverything) {
  const PlacementFile out = some_placement({2, 4});
  const std::string image = serialize_placement(out, FileFormat::kJson);
  const PlacementFile back = parse_placement(bytes_of(image), "some");
  EXPECT_EQ(rows(back.placement), kRows);
  EXPECT_EQ(back.placement.slots_of_rank(0), 2);
  EXPECT_EQ(back.layer_ids, out.layer_ids);
  EXPECT_EQ(back.metadata, out.metadata);
  EXPECT_EQ(rows(parse_map(image, FileFormat::kSglang).placement),
            kRows);  // SGLang finds its key in it
}

TEST(WritePlacement, ExactlyAsTheEngineDoes) {
  EXPECT_EQ(serialize_placement(some_placement(), FileFormat::kTrtllm),
            "initial_global_assignments:\n  3: [0, 1, 2, 3, 0, 1]\n  4: [3, 2, 0, 1, 0, 3]\n"
            "layer_updates_per_iter: 0\nnum_slots: 6\n");
  EXPECT_EQ(
      serialize_placement(some_placement(), FileFormat::kVllm),
      R"({"record_type": "eplb_initial_mapping", "version": 1, "num_redundant_experts": 2, "num_slots": 6, )"
      R"("initial_global_assignments": {"0": [0, 1, 2, 3, 0, 1], "1": [3, 2, 0, 1, 0, 3]}})"
      "\n");
}

TEST(ReadPlacement, RanksAndExperts) {
  const std::string text = R"({"physical_to_logical_map": [[0, 1, 2, 0]]})";
  const auto read = [&](PlacementOptions options) {
    return parse_map(text, FileFormat::kSglang, std::move(options));
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
    expect_refused<InvalidArgument>([&] { parse_map(image, format, {.num_ranks = 3}); },
                                    "on 2 ranks; asked for 3");
    expect_refused<InvalidArgument>([&] { parse_map(image, format, {.slots_per_rank = {2, 4}}); },
                                    "not those asked for");
  }
}

TEST(ReadJsonPlacement, Refusals) {
  const std::string head =
      R"({"format": "trimtab_placement", "version": 1, "slots_per_rank": [1, 1], )";
  const auto refused = [&](const std::string& rest, const std::string& part) {
    expect_map_refused(FileFormat::kJson, head + rest, part);
  };
  ASSERT_EQ(
      rows(
          parse_map(head + R"("physical_to_logical_map": [[1, 0]]})", FileFormat::kJson).placement),
      (Rows{{1, 0}}));
  refused(R"("physical_to_logical_map": [[1, 0, 0]]})", "slots_per_rank sum to 2; a layer has 3");
  refused(R"("physical_to_logical_map": [[1, 0]], "num_ranks": 3})",
          "num_ranks is 3; the table has 2");
  refused(R"("physical_to_logical_map": [[1, 0]], "num_layers": 2})", "num_layers is 2");
  refused(R"("physical_to_logical_map": [[1, 0]], "num_experts": 3})", "2 slots for 3 experts");
  refused(R"("physical_to_logical_map": [[1, 1]]})", "no slot holds expert 0");
  refused(R"("physical_to_logical_map": [[-1, 0]]})", "-1 is out of range");
  refused(R"("physical_to_logical_map": [[1048576, 0]]})", "out of range");
  refused(R"("physical_to_logical_map": [[1, 0]], "layer_ids": [1, 2]})",
          "2 layer_ids for 1 layers");
  refused(R"("physical_to_logical_map": [[[1, 0]]]})", "nested more than 2 deep");
  refused(R"("layer_ids": [1]})", "no key \"physical_to_logical_map\"");
  expect_map_refused(
      FileFormat::kJson,
      R"({"format": "trimtab_placement", "version": 1, "physical_to_logical_map": [[0]]})",
      "no key \"slots_per_rank\"");
}

// One layer of two devices.
std::string ascend(const std::string& devices, const std::string& more = "",
                   const std::string& count = "1") {
  return R"({"moe_layer_count": )" + count +
         R"(, "layer_list": [{"layer_id": 4, "device_count": 2, "device_list": [)" + devices +
         "]}" + more + "]}";
}

TEST(ReadAscendPlacement, Refusals) {
  const auto refused = [](const std::string& text, const std::string& part) {
    expect_map_refused(FileFormat::kVllmAscend, text, part);
  };
  const std::string zero = R"({"device_id": 0, "device_expert": [0, 1]})";
  const std::string one = R"({"device_id": 1, "device_expert": [2, 0]})";
  const std::string both = zero + "," + one;
  ASSERT_EQ(rows(parse_map(ascend(both), FileFormat::kVllmAscend).placement), (Rows{{0, 1, 2, 0}}));
  const auto layer = [&](const std::string& id) {
    return R"(, {"layer_id": )" + id + R"(, "device_count": 2, "device_list": [)" + both + "]}";
  };
  EXPECT_EQ(parse_map(ascend(both, layer("7"), "2"), FileFormat::kVllmAscend).layer_ids,
            (std::vector<int>{4, 7}));
  refused(ascend(both, layer("3"), "2"), "layer_id 3 after 4");
  refused(ascend(both, layer("4"), "2"), "layer_id 4 after 4");
  refused(ascend(both, "", "2"), "moe_layer_count is 2; layer_list has 1");
  refused(ascend(one + "," + zero), "device_id 1 at place 0");
  refused(ascend(zero + "," + zero), "device_id 0 at place 1");
  refused(ascend(zero), "device_count is 2; device_list has 1");
  refused(ascend(zero + R"(,{"device_id": 1, "device_expert": [2]})"),
          "device 1 has 1 slots; the first has 2");
  refused(ascend(zero + R"(,{"device_id": 1})"), "device 1 has 0 slots");
  refused(ascend(zero + R"(,{"device_id": 1, "device_expert": []})"), "an empty list");
  refused(ascend(zero + R"(,{"device_id": 1, "device_expert": [2, -1]})"), "-1 is out of range");
  refused(ascend(zero + R"(,{"device_id": 1, "device_expert": [3, 0]})"),
          "layer 4: no slot holds expert 2");
  refused(
      ascend(both, R"(, {"layer_id": 5, "device_count": 1, "device_list": [)" + zero + "]}", "2"),
      "1 devices");
  refused(ascend(both, R"(, {"device_count": 0, "device_list": []})", "2"), "no layer_id");
  refused(R"({"moe_layer_count": 0, "layer_list": []})", "no layers");
  refused(R"({"moe_layers": 0})", "unknown key \"moe_layers\"");
}

TEST(ReadVllmPlacement, Refusals) {
  const auto mapping = [](const std::string& rest) {
    return R"({"record_type": "eplb_initial_mapping", "version": 1, )" + rest + "}\n";
  };
  const auto refused = [](const std::string& text, const std::string& part) {
    expect_map_refused(FileFormat::kVllm, text, part);
  };
  const std::string good = mapping(
      R"("num_redundant_experts": 1, "num_slots": 4, "initial_global_assignments": {"0": [0, 1, 2, 0]})");
  ASSERT_EQ(parse_map(good, FileFormat::kVllm).placement.num_experts(), 3);
  refused(good + good, "a second eplb_initial_mapping");
  refused(
      mapping(
          R"("num_redundant_experts": 0, "num_slots": 4, "initial_global_assignments": {"0": [0, 1, 2, 0]})"),
      "no slot holds expert 3");
  refused(
      mapping(
          R"("num_redundant_experts": 2, "num_slots": 4, "initial_global_assignments": {"0": [0, 1, 2, 0]})"),
      "holds expert 2 of 2");
  refused(
      mapping(
          R"("num_redundant_experts": 4, "num_slots": 4, "initial_global_assignments": {"0": [0, 1, 2, 0]})"),
      "num_redundant_experts 4");
  refused(
      mapping(
          R"("num_redundant_experts": 1, "num_slots": 4, "initial_global_assignments": {"0": [0, 1, 2]})"),
      "layer 0: 3 slots; num_slots is 4");
  refused(
      mapping(
          R"("num_redundant_experts": 1, "num_slots": 2, "initial_global_assignments": {"1": [0, 0]})"),
      "layer \"1\" where \"0\" is expected");
  refused(mapping(R"("num_redundant_experts": 1, "num_slots": 4)"),
          "no initial_global_assignments");
  refused("\n", "no eplb_initial_mapping record");
  refused(R"({"record_type": "eplb_load_stats", "version": 1})", "eplb_initial_mapping expected");
}

TEST(ReadTrtllmPlacement, AcceptsItsSubsetOfYaml) {
  const std::string text =
      "# written by hand\n---\nnum_slots: 4   # in all\n\ninitial_global_assignments:\n    3: [ 0, "
      "1,\n      # folded\n"
      "        2,\n      0 ]\n    5:\n    - 1\n    - 0  # hot\n    - 2\n    - 1\n";
  const PlacementFile read = parse_map(text, FileFormat::kTrtllm);
  EXPECT_EQ(rows(read.placement), (Rows{{0, 1, 2, 0}, {1, 0, 2, 1}}));
  EXPECT_EQ(read.layer_ids, (std::vector<int>{3, 5}));
  EXPECT_FALSE(read.metadata.contains("layer_updates_per_iter"));
  PlacementFile online = some_placement();
  online.metadata["layer_updates_per_iter"] = "2";
  const std::string image = serialize_placement(online, FileFormat::kTrtllm);
  EXPECT_EQ(parse_map(image, FileFormat::kTrtllm).metadata.at("layer_updates_per_iter"), "2");
  online.metadata["layer_updates_per_iter"] = "2\nnum_slots: 9";
  expect_refused<InvalidArgument>([&] { serialize_placement(online, FileFormat::kTrtllm); },
                                  "a number expected");
}

TEST(ReadTrtllmPlacement, Refusals) {
  const auto refused = [](std::string_view text, const std::string& part, int64_t offset = -1) {
    expect_map_refused(FileFormat::kTrtllm, text, part, offset);
  };
  const auto layers = [](const std::string& text) {
    return "num_slots: 2\ninitial_global_assignments:\n" + text;
  };
  refused("", "no num_slots");
  refused("num_slots: 2\n", "no initial_global_assignments");
  refused("num_slots: 2\nnum_slots: 2\n", "line 2: num_slots comes twice", 13);
  refused("num_slots: two\n", "a whole number expected, not 'two'", 11);
  refused("slots: 2\n", "line 1: unknown key slots", 0);
  refused("num_slots: 0\ninitial_global_assignments:\n  1: []\n", "without slots");
  refused(layers("  1: [0, 1]\n  1: [0, 1]\n"), "line 4: layer 1 after 1", 55);
  refused(layers("  1: [0, 1]\n  0: [0, 1]\n"), "layer 0 after 1");
  refused(layers("  1: [0, 1]\n   2: [0, 1]\n"), "indented otherwise");
  refused(layers("  1: [0, 1, 0]\n"), "layer 1: 3 slots; num_slots is 2", 41);
  refused(layers("  1: [0, 1\n"), "',' or ']' expected");
  refused(layers("  1: [0,\n"), "a list without an end");
  refused(layers("  1: [0,\nnum_slots: 2\n"), "a list without an end");
  refused(layers("  1: [0, 1] 2\n"), "something follows the list");
  refused(layers("  1: [0, ]\n"), "a whole number expected, not ''");
  refused(layers("  1: [0, -1]\n"), "expert -1 is out of range");
  refused(layers("  1: [0, 0x1]\n"), "a whole number expected, not '0x1'");
  refused(layers("  1: [0, 1048576]\n"), "out of range");
  refused(layers("  1: &a [0, 1]\n"), "a list of experts expected");
  refused(layers("  1: 5\n"), "a list of experts expected");
  refused(layers("  1:\nlayer_updates_per_iter: 0\n"), "layer 1: no list of experts");
  refused(layers("  1:\n  - 0\n    - 1\n"), "indented otherwise than the list before");
  refused(layers("  1:\n  -0\n"), "'- number' expected");
  refused(layers("  '1': [0, 1]\n"), "a plain key expected");
  refused(layers("  one: [0, 1]\n"), "layer: a whole number expected, not 'one'");
  refused(layers("\t1: [0, 1]\n"), "a tab in the indentation");
  refused("num_slots: 2\ninitial_global_assignments: {1: [0, 1]}\n", "not a map in braces");
  refused("moe_config:\n  load_balancer:\n", "unknown key moe_config");
  refused(layers("  1: [0, 0]\n  2: [1, 1]\n"), "layer 1: no slot holds expert 1", 41);
}

TEST(DetectFormat, ByContentBeforeName) {
  const auto detect = [](std::string_view text, const std::string& file = "some") {
    return detect_format(bytes_of(text), file).format;
  };
  EXPECT_EQ(detect("0,1,2\n", "a.json"), FileFormat::kCsv);
  EXPECT_EQ(detect("layer,expert,count\n"), FileFormat::kCsv);
  EXPECT_EQ(detect("# head\nS 0 1\n"), FileFormat::kTopK);
  EXPECT_EQ(detect("1 2|3 4\n"), FileFormat::kTopK);
  EXPECT_EQ(detect("---\nnum_slots: 1\n"), FileFormat::kTrtllm);
  EXPECT_EQ(detect("what: ever\n", "a.yaml"), FileFormat::kTrtllm);
  EXPECT_EQ(detect("expert;count\n", "a.csv"), FileFormat::kCsv);
  EXPECT_EQ(detect(R"({"logical_count": [[1]], "format": "trimtab_loads"})"), FileFormat::kJson);
  EXPECT_EQ(detect_format(kFixtures + "trtllm_statistics").format, FileFormat::kTrtllm);
  EXPECT_EQ(detect_format(kFixtures + "deepseek_phy2log.npy").kind, FileKind::kUnclear);
}

TEST(DetectFormat, AnArrayOfThreeDimensionsIsLoads) {
  const Load load{.num_steps = 1, .num_layers = 1, .num_experts = 2, .counts = {3, 4}};
  const std::string image = serialize_recording({load, {0}, {0}, {}, ""}, FileFormat::kNpy);
  EXPECT_EQ(detect_format(bytes_of(image), "some").kind, FileKind::kLoads);
  expect_refused<FormatError>([&] { parse_placement(bytes_of(image), "some", {.num_ranks = 1}); },
                              "holds loads, no placement (npy of three dimensions)", 0);
  expect_refused<FormatError>([&] { detect_format(bytes_of(image.substr(0, 40)), "some"); },
                              "some");
}

TEST(DetectFormat, SaysTheWayOut) {
  const auto refused = [](std::string_view text, const std::string& part) {
    expect_refused<FormatError>([&] { detect_format(bytes_of(text), "some"); }, part, 0);
  };
  refused("", "empty");
  refused("\x1f\x8b\x08", "gzip -dc FILE");
  refused("PK\x03\x04", "PyTorch's .pt");
  refused("hello\n", "of no known format; known are json, npy");
  refused(R"({"a": 1})", "without a key of a known format");
  refused(R"({"num_experts": 4, "num_experts_per_token": 2})", "give the folder");
}

TEST(DetectFormat, RefusesTheOtherKind) {
  const std::string loads = R"({"logical_count": [[1]]})";
  expect_refused<FormatError>([&] { parse_placement(bytes_of(loads), "some", {.num_ranks = 1}); },
                              "loads, no placement");
  const std::string map = R"({"physical_to_logical_map": [[0]]})";
  expect_refused<FormatError>([&] { parse_recording(bytes_of(map), "some"); },
                              "a placement, no loads (sglang)");
  expect_refused<InvalidArgument>([&] { parse_map("0,0,1\n", FileFormat::kCsv); },
                                  "format csv has no placements");
  expect_refused<InvalidArgument>([&] { parse_loads(map, FileFormat::kVllmAscend); },
                                  "format vllm-ascend has no loads");
}

TEST(FileFormats, NamesGoBothWays) {
  for (const FileFormatInfo& info : file_formats()) {
    EXPECT_EQ(file_format(info.name), info.format);
    EXPECT_EQ(name(info.format), info.name);
  }
  EXPECT_EQ(file_formats().size(), 8U);
  expect_refused<InvalidArgument>([] { file_format("xml"); },
                                  "unknown format xml; known are json, npy, csv");
}

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
  EXPECT_EQ(read(quoted("\x01\"\\\n")), "\x01\"\\\n");
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
