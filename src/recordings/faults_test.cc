// SPDX-License-Identifier: Apache-2.0
// Every reader against every kind of fault that files of users have had.
#include <string>

#include "base/cat.h"
#include "recordings/testing.h"

namespace trimtab {
namespace {

using std::string_view_literals::operator""sv;

// A file with '@' in the place of a number.
struct Sample {
  FileFormat format;
  std::string text;
};

const Sample kLoadsWithANumber[] = {
    {FileFormat::kJson, R"({"format": "trimtab_loads", "version": 1, "logical_count": [[1, @]]})"},
    {FileFormat::kJson,
     R"({"format": "trimtab_loads", "version": 1, "logical_count": [[1]], "step_ids": [@]})"},
    {FileFormat::kJson,
     R"({"format": "trimtab_loads", "version": 1, "logical_count": [[1]], "layer_ids": [@]})"},
    {FileFormat::kJson,
     R"({"format": "trimtab_loads", "version": 1, "logical_count": [[1]], "num_steps": @})"},
    {FileFormat::kCsv, "0,0,1\n0,1,@\n"},
    {FileFormat::kCsv, "0,0,1\n0,@,1\n"},
    {FileFormat::kCsv, "0,0,1\n@,0,1\n"},
    {FileFormat::kCsv, "0,0,0,1\n@,0,0,1\n"},
    {FileFormat::kTopK, "0 1|2 3\n0 1|2 @\n"},
    {FileFormat::kTopK, "# experts=@\n0 1|2 3\n"},
    {FileFormat::kSglang, R"({"logical_count": [[1, @]]})"},
    {FileFormat::kVllm, R"({"record_type": "eplb_load_stats", "version": 1, "step": 0, )"
                        R"("expert_load": [[1, @]], "p2l_map": [[0, 1]]})"},
    {FileFormat::kVllm, R"({"record_type": "eplb_load_stats", "version": 1, "step": 0, )"
                        R"("expert_load": [[1, 2]], "p2l_map": [[0, @]]})"},
    {FileFormat::kVllm, R"({"record_type": "eplb_load_stats", "version": 1, "step": @, )"
                        R"("expert_load": [[1, 2]], "p2l_map": [[0, 1]]})"},
};

const Sample kPlacementsWithANumber[] = {
    {FileFormat::kJson,
     R"({"format": "trimtab_placement", "version": 1, "slots_per_rank": [1, 1], )"
     R"("physical_to_logical_map": [[0, @]]})"},
    {FileFormat::kJson,
     R"({"format": "trimtab_placement", "version": 1, "slots_per_rank": [1, @], )"
     R"("physical_to_logical_map": [[0, 1]]})"},
    {FileFormat::kJson,
     R"({"format": "trimtab_placement", "version": 1, "slots_per_rank": [1, 1], )"
     R"("physical_to_logical_map": [[0, 1]], "layer_ids": [@]})"},
    {FileFormat::kSglang, R"({"physical_to_logical_map": [[0, @]]})"},
    {FileFormat::kTrtllm, "num_slots: 2\ninitial_global_assignments:\n  1: [0, @]\n"},
    {FileFormat::kTrtllm, "num_slots: 2\ninitial_global_assignments:\n  1:\n  - 0\n  - @\n"},
    {FileFormat::kTrtllm, "num_slots: 2\ninitial_global_assignments:\n  @: [0, 1]\n"},
    {FileFormat::kTrtllm, "num_slots: @\ninitial_global_assignments:\n  1: [0, 1]\n"},
    {FileFormat::kVllm,
     R"({"record_type": "eplb_initial_mapping", "version": 1, "num_redundant_experts": 0, )"
     R"("num_slots": 2, "initial_global_assignments": {"0": [0, @]}})"},
    {FileFormat::kVllm,
     R"({"record_type": "eplb_initial_mapping", "version": 1, "num_redundant_experts": 0, )"
     R"("num_slots": @, "initial_global_assignments": {"0": [0, 1]}})"},
    {FileFormat::kVllmAscend,
     R"({"moe_layer_count": 1, "layer_list": [{"layer_id": 0, "device_list": )"
     R"([{"device_id": 0, "device_expert": [0]}, {"device_id": 1, "device_expert": [@]}]}]})"},
    {FileFormat::kVllmAscend,
     R"({"moe_layer_count": @, "layer_list": [{"layer_id": 0, "device_list": )"
     R"([{"device_id": 0, "device_expert": [0]}, {"device_id": 1, "device_expert": [1]}]}]})"},
    {FileFormat::kVllmAscend,
     R"({"moe_layer_count": 1, "layer_list": [{"layer_id": @, "device_list": )"
     R"([{"device_id": 0, "device_expert": [0]}, {"device_id": 1, "device_expert": [1]}]}]})"},
    {FileFormat::kVllmAscend,
     R"({"moe_layer_count": 1, "layer_list": [{"layer_id": 0, "device_list": )"
     R"([{"device_id": 0, "device_expert": [0]}, {"device_id": @, "device_expert": [1]}]}]})"},
};

constexpr const char* kNoNumbers[] = {"-1",
                                      "-9223372036854775809",
                                      "9223372036854775808",
                                      "99999999999999999999999",
                                      "1.5",
                                      "2.0",
                                      "1e999",
                                      "1e2",
                                      "NaN",
                                      "nan",
                                      "Infinity",
                                      "inf",
                                      "null",
                                      "true",
                                      "\"3\"",
                                      "0x3",
                                      "1_000",
                                      "+3",
                                      "",
                                      "@"};

std::string with(const Sample& sample, std::string_view number) {
  std::string text = sample.text;
  return text.replace(text.find('@'), 1, number);
}

TEST(Faults, ANumberThatIsNoneIsRefusedByEveryReader) {
  for (const char* number : kNoNumbers) {
    for (const Sample& sample : kLoadsWithANumber)
      expect_loads_refused(sample.format, with(sample, number), "some");
    for (const Sample& sample : kPlacementsWithANumber)
      expect_placement_refused(sample.format, with(sample, number), "some");
  }
}

TEST(Faults, TheSamplesAreReadWithARightNumber) {
  for (const Sample& sample : kLoadsWithANumber) {
    SCOPED_TRACE(sample.text);
    const char* number = sample.text.starts_with('#')         ? "4"
                         : sample.format == FileFormat::kTopK ? "3"
                                                              : "1";
    EXPECT_NO_THROW(parse_loads(with(sample, number), sample.format));
  }
  for (const Sample& sample : kPlacementsWithANumber) {
    SCOPED_TRACE(sample.text);
    const bool is_two = sample.text.find("num_slots: @") != std::string::npos ||
                        sample.text.find("\"num_slots\": @") != std::string::npos;
    EXPECT_NO_THROW(parse_some_placement(with(sample, is_two ? "2" : "1"), sample.format));
  }
}

TEST(Faults, ASumBeyond63BitsIsRefusedByEveryReader) {
  const std::string most = "9223372036854775807";
  const auto refused = [&](FileFormat format, std::string text) {
    for (size_t at; (at = text.find('@')) != std::string::npos;) text.replace(at, 1, most);
    expect_loads_refused(format, text, "63 bits");
  };
  refused(FileFormat::kJson,
          R"({"format": "trimtab_loads", "version": 1, "logical_count": [[[1]], [[@]]]})");
  refused(FileFormat::kSglang, R"({"logical_count": [[@, 0], [@, 0]]})");
  refused(FileFormat::kCsv, "0,0,@\n5,3,1\n");
  refused(FileFormat::kVllm, R"({"record_type": "eplb_load_stats", "version": 1, "step": 0, )"
                             R"("expert_load": [[@, 1]], "p2l_map": [[0, 1]]})");
}

std::vector<Sample> whole_loads() {
  std::vector<Sample> samples = {{FileFormat::kTopK, "S 0 2\n0 1|2 3\n1 0|3 1\nS 1 1\n3 0|3 2\n"}};
  for (const FileFormatInfo& one : file_formats()) {
    if (one.writes_loads)
      samples.push_back({one.format, serialize_recording(some_recording(), one.format)});
  }
  return samples;
}

std::vector<Sample> whole_placements() {
  PlacementFile placement = some_placement();
  placement.layer_ids = {0, 1};
  std::vector<Sample> samples;
  for (const FileFormatInfo& one : file_formats()) {
    if (one.placements) samples.push_back({one.format, serialize_placement(placement, one.format)});
  }
  return samples;
}

bool is_text(FileFormat format, const std::string& image) {
  return format != FileFormat::kNpy && image.find('\0') == std::string::npos;
}

// The image is read as the good one, both when the format is given and when it is detected.
void expect_same_loads(const Sample& good, const std::string& image) {
  SCOPED_TRACE(name(good.format));
  const Recording want = parse_loads(good.text, good.format);
  EXPECT_EQ(detect_format(bytes_of(image), "some").format, good.format);
  EXPECT_EQ(parse_loads(image, good.format).load.counts, want.load.counts);
  EXPECT_EQ(parse_loads(image, good.format).layer_ids, want.layer_ids);
}

void expect_same_placement(const Sample& good, const std::string& image) {
  SCOPED_TRACE(name(good.format));
  const PlacementFile want = parse_some_placement(good.text, good.format);
  EXPECT_EQ(detect_format(bytes_of(image), "some").format, good.format);
  EXPECT_EQ(rows(parse_some_placement(image, good.format).placement), rows(want.placement));
}

TEST(Faults, AByteOrderMarkIsPassedOver) {
  const std::string mark = "\xef\xbb\xbf";
  for (const Sample& good : whole_loads())
    if (is_text(good.format, good.text)) expect_same_loads(good, mark + good.text);
  for (const Sample& good : whole_placements())
    if (is_text(good.format, good.text)) expect_same_placement(good, mark + good.text);
  const auto refused = [&](FileFormat format, const std::string& text, int64_t offset) {
    expect_loads_refused(format, mark + text, "line 1: ", offset);
  };
  refused(FileFormat::kCsv, "0,1,x\n", 7);  // errors count the mark's bytes
  refused(FileFormat::kSglang, "{\"logical_count\": [[x]]}", 3 + 20);
  refused(FileFormat::kVllm, "{\"record_type\": x}\n", 3 + 16);
  expect_loads_refused(FileFormat::kCsv, mark + mark + "0,1,2\n", "line 1: layer");
}

TEST(Faults, LinesMayEndAsOnWindows) {
  const auto windows = [](std::string text) {
    for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2)
      text.replace(at, 1, "\r\n");
    return text;
  };
  for (const Sample& good : whole_loads())
    if (is_text(good.format, good.text)) expect_same_loads(good, windows(good.text));
  for (const Sample& good : whole_placements())
    if (is_text(good.format, good.text)) expect_same_placement(good, windows(good.text));
}

TEST(Faults, AFileThatEndsTooEarlyIsRefusedOrWhole) {
  for (const Sample& good : whole_loads()) {
    // A last number that lost its last digits looks like a whole one in these two.
    if (good.format == FileFormat::kCsv || good.format == FileFormat::kTopK) continue;
    for (size_t size = 0; size < good.text.size(); ++size) {
      SCOPED_TRACE(cat(name(good.format), ", ", size, " bytes of ", good.text.size()));
      try {
        const Recording read =
            parse_loads(std::string_view(good.text).substr(0, size), good.format);
        // vLLM's lines are records of one step each.
        EXPECT_TRUE(read.load.counts == some_recording().load.counts ||
                    (good.format == FileFormat::kVllm && read.load.num_steps == 1));
      } catch (const FormatError& error) {
        EXPECT_LE(error.offset(), static_cast<int64_t>(size));
      }
    }
  }
  for (const Sample& good : whole_placements()) {
    for (size_t size = 0; size < good.text.size(); ++size) {
      SCOPED_TRACE(cat(name(good.format), ", ", size, " bytes of ", good.text.size()));
      try {
        const auto text = std::string_view(good.text).substr(0, size);
        EXPECT_EQ(rows(parse_some_placement(text, good.format).placement), kRows);
      } catch (const FormatError& error) {
        EXPECT_LE(error.offset(), static_cast<int64_t>(size));
      } catch (const InvalidArgument& error) {  // "num_slots: 6" cut to "num_slots:" is refused,
        ADD_FAILURE() << error.what();          // but never taken for other slots
      }
    }
  }
}

TEST(Faults, ACsvThatIsCutBetweenTwoLines) {
  const std::string whole = serialize_recording(some_recording(), FileFormat::kCsv);
  int accepted = 0;
  for (size_t end = whole.find('\n') + 1; end < whole.size(); end = whole.find('\n', end) + 1) {
    try {
      const Recording read = parse_loads(whole.substr(0, end), FileFormat::kCsv);
      const int64_t cells_of_step = int64_t{read.load.num_layers} * read.load.num_experts;
      EXPECT_EQ(std::count(whole.begin(), whole.begin() + end, '\n') - 1,
                read.load.num_steps * cells_of_step);
      ++accepted;
    } catch (const FormatError& error) {
      const std::string text = error.what();
      EXPECT_TRUE(text.find("must have been cut off") != text.npos ||
                  text.find("no counts") != text.npos)
          << text;
    }
  }
  EXPECT_GT(accepted, 0);  // a file of fewer experts or layers is whole too
  // Where no zeros are listed, the file has only the cells with tokens.
  EXPECT_EQ(parse_loads("0,0,1\n0,1,1\n1,0,1\n", FileFormat::kCsv).load.counts.back(), 0);
}

TEST(Faults, WhatStandsInThePlaceOfTheDataIsNamed) {
  const struct {
    std::string_view content;
    const char* what;
  } kinds[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "Git LFS pointer"},
      {"<!DOCTYPE html>\n<html>", "an HTML page"},
      {"\x1f\x8b\x08 packed"sv, "gzip -dc"},
      {"\x28\xb5\x2f\xfd packed"sv, "zstd -dc"},
      {"BZh91AY packed", "bzip2 -dc"},
      {"\x04\x22\x4d\x18 packed"sv, "lz4 -dc"},
      {"PK\x03\x04 packed"sv, "save the one as .npy"},
      {"\x80\x02}q\0"sv, "a pickle"},
      {"\xff\xfe{\0"sv, "UTF-16"},
  };
  for (const auto& [content, what] : kinds) {
    expect_refused<FormatError>([&] { detect_format(bytes_of(content), "some"); }, what, 0);
    for (const FileFormatInfo& one : file_formats()) {
      if (one.reads_loads) expect_loads_refused(one.format, content, what, 0);
      if (one.placements) expect_placement_refused(one.format, content, what, 0);
    }
  }
}

TEST(Faults, AKeyThatComesTwiceIsRefused) {
  const auto refused = [](FileFormat format, const std::string& text) {
    expect_placement_refused(format, text, "comes twice");
  };
  refused(FileFormat::kSglang, R"({"physical_to_logical_map": [[0]], "a": {"b": 1, "b": 1}})");
  refused(FileFormat::kVllmAscend, R"({"moe_layer_count": 1, "moe_layer_count": 1})");
  refused(FileFormat::kVllmAscend,
          R"({"layer_list": [{"device_list": [{"device_expert": [0], "device_expert": [0]}]}]})");
  refused(FileFormat::kVllm, R"({"record_type": "a", "record_type": "b"})");
  refused(FileFormat::kJson, R"({"format": "trimtab_placement", "format": "trimtab_placement"})");
}

}  // namespace
}  // namespace trimtab
