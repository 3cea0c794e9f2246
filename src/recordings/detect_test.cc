// SPDX-License-Identifier: Apache-2.0
// How formats are told apart.
#include "recordings/testing.h"

namespace trimtab {
namespace {

using std::string_view_literals::operator""sv;

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
  refused("\xef\xbb\xbf", "of no known format");
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
  expect_refused<InvalidArgument>([&] { parse_some_placement("0,0,1\n", FileFormat::kCsv); },
                                  "format csv has no placements");
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

}  // namespace
}  // namespace trimtab
