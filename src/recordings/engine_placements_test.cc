// SPDX-License-Identifier: Apache-2.0
// Placements of Trimtab and the engines: what each reader accepts and refuses.
#include "recordings/testing.h"

namespace trimtab {
namespace {

TEST(ReadJsonPlacement, Refusals) {
  const std::string head =
      R"({"format": "trimtab_placement", "version": 1, "slots_per_rank": [1, 1], )";
  const auto refused = [&](const std::string& rest, const std::string& part) {
    expect_placement_refused(FileFormat::kJson, head + rest, part);
  };
  ASSERT_EQ(
      rows(parse_some_placement(head + R"("physical_to_logical_map": [[1, 0]]})", FileFormat::kJson)
               .placement),
      (SlotRows{{1, 0}}));
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
  expect_placement_refused(
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

const std::string kDevice0 = R"({"device_id": 0, "device_expert": [0, 1]})";
const std::string kDevice1 = R"({"device_id": 1, "device_expert": [2, 0]})";

TEST(ReadAscendPlacement, Refusals) {
  const auto refused = [](const std::string& text, const std::string& part) {
    expect_placement_refused(FileFormat::kVllmAscend, text, part);
  };
  const std::string both = kDevice0 + "," + kDevice1;
  ASSERT_EQ(rows(parse_some_placement(ascend(both), FileFormat::kVllmAscend).placement),
            (SlotRows{{0, 1, 2, 0}}));
  const auto layer = [&](const std::string& id) {
    return R"(, {"layer_id": )" + id + R"(, "device_count": 2, "device_list": [)" + both + "]}";
  };
  EXPECT_EQ(parse_some_placement(ascend(both, layer("7"), "2"), FileFormat::kVllmAscend).layer_ids,
            (std::vector<int>{4, 7}));
  refused(ascend(both, layer("3"), "2"), "layer_id 3 after 4");
  refused(ascend(both, layer("4"), "2"), "layer_id 4 after 4");
  refused(ascend(both, "", "2"), "moe_layer_count is 2; layer_list has 1");
  refused(ascend(kDevice1 + "," + kDevice0), "device_id 1 at place 0");
  refused(ascend(kDevice0 + "," + kDevice0), "device_id 0 at place 1");
  refused(ascend(kDevice0), "device_count is 2; device_list has 1");
  const auto second = [&](const std::string& device) { return ascend(kDevice0 + "," + device); };
  refused(second(R"({"device_id": 1, "device_expert": [2]})"),
          "device 1 has 1 slots; the first has 2");
  refused(second(R"({"device_id": 1})"), "device 1: no device_expert");
  refused(second(R"({"device_id": 1, "device_expert": []})"), "an empty list");
  refused(second(R"({"device_id": 1, "device_expert": [2, -1]})"), "-1 is out of range");
  refused(second(R"({"device_id": 1, "device_expert": [3, 0]})"),
          "layer 4: no slot holds expert 2");
  refused(ascend(both, R"(, {"layer_id": 5, "device_count": 1, "device_list": [)" + kDevice0 + "]}",
                 "2"),
          "1 devices");
  refused(ascend(both, R"(, {"layer_id": 5, "device_list": []})", "2"), "no devices");
  refused(ascend(both, R"(, {"device_list": [)" + both + "]}", "2"),
          "some entries of layer_list have a layer_id and others have none");
  refused(R"({"moe_layer_count": 0, "layer_list": []})", "no layers");
  refused(R"({"moe_layer_count": 1})", "moe_layer_count is 1; layer_list has 0");
  refused(R"({"layer_list": []})", "no moe_layer_count, which the engine needs");
}

TEST(ReadAscendPlacement, KeysThatTheEngineDoesNotReadMayBeAbsentOrMore) {
  const auto read = [](const std::string& text) {
    return parse_some_placement(text, FileFormat::kVllmAscend);
  };
  const PlacementFile bare =
      read(R"({"moe_layer_count": 2, "layer_list": [{"device_list": [{"device_expert": [0, 1]},)"
           R"({"device_expert": [1, 0]}]}, {"device_list": [{"device_expert": [1, 0]},)"
           R"({"device_expert": [0, 1]}]}]})");
  EXPECT_EQ(rows(bare.placement), (SlotRows{{0, 1, 1, 0}, {1, 0, 0, 1}}));
  EXPECT_EQ(bare.layer_ids, (std::vector<int>{0, 1}));
  const PlacementFile more =
      read(R"({"strategy_version": 1, "moe_layer_count": 1, "made_by": {"a": [1.5, null]},)"
           R"("layer_list": [{"layer_id": 3, "par": 1.25, "device_list": [{"device_id": 0,)"
           R"("device_expert": [0], "load": 7}, {"device_expert": [1]}]}]})");
  EXPECT_EQ(rows(more.placement), (SlotRows{{0, 1}}));
  EXPECT_EQ(more.layer_ids, (std::vector<int>{3}));
}

TEST(ReadVllmPlacement, Refusals) {
  const auto record = [](const std::string& rest) {
    return R"({"record_type": "eplb_initial_mapping", "version": 1, )" + rest + "}\n";
  };
  const auto mapping = [&](int redundant, int slots, const std::string& layers) {
    return record(cat(R"("num_redundant_experts": )", redundant, R"(, "num_slots": )", slots,
                      R"(, "initial_global_assignments": {)", layers, "}"));
  };
  const auto refused = [](const std::string& text, const std::string& part) {
    expect_placement_refused(FileFormat::kVllm, text, part);
  };
  const std::string good = mapping(1, 4, R"("0": [0, 1, 2, 0])");
  ASSERT_EQ(parse_some_placement(good, FileFormat::kVllm).placement.num_experts(), 3);
  refused(good + good, "a second eplb_initial_mapping");
  refused(mapping(0, 4, R"("0": [0, 1, 2, 0])"), "no slot holds expert 3");
  refused(mapping(2, 4, R"("0": [0, 1, 2, 0])"), "holds expert 2 of 2");
  refused(mapping(4, 4, R"("0": [0, 1, 2, 0])"), "num_redundant_experts 4");
  refused(mapping(1, 4, R"("0": [0, 1, 2])"), "layer 0: 3 slots; num_slots is 4");
  refused(mapping(1, 2, R"("1": [0, 0])"), "layer \"1\" where \"0\" is expected");
  refused(record(R"("num_redundant_experts": 1, "num_slots": 4)"), "no initial_global_assignments");
  refused("\n", "no eplb_initial_mapping record");
  refused(R"({"record_type": "eplb_load_stats", "version": 1})", "eplb_initial_mapping expected");
}

TEST(ReadTrtllmPlacement, AcceptsItsSubsetOfYaml) {
  const std::string text =
      "# written by hand\n---\nnum_slots: 4   # in all\n\ninitial_global_assignments:\n    3: [ 0, "
      "1,\n      # folded\n"
      "        2,\n      0 ]\n    5:\n    - 1\n    - 0  # hot\n    - 2\n    - 1\n";
  const PlacementFile read = parse_some_placement(text, FileFormat::kTrtllm);
  EXPECT_EQ(rows(read.placement), (SlotRows{{0, 1, 2, 0}, {1, 0, 2, 1}}));
  EXPECT_EQ(read.layer_ids, (std::vector<int>{3, 5}));
  EXPECT_FALSE(read.metadata.contains("layer_updates_per_iter"));
  PlacementFile online = some_placement();
  online.metadata["layer_updates_per_iter"] = "2";
  const std::string image = serialize_placement(online, FileFormat::kTrtllm);
  EXPECT_EQ(parse_some_placement(image, FileFormat::kTrtllm).metadata.at("layer_updates_per_iter"),
            "2");
  online.metadata["layer_updates_per_iter"] = "2\nnum_slots: 9";
  expect_refused<InvalidArgument>([&] { serialize_placement(online, FileFormat::kTrtllm); },
                                  "a number expected");
}

TEST(ReadTrtllmPlacement, Refusals) {
  const auto refused = [](std::string_view text, const std::string& part, int64_t offset = -1) {
    expect_placement_refused(FileFormat::kTrtllm, text, part, offset);
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

}  // namespace
}  // namespace trimtab
