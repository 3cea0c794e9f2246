// SPDX-License-Identifier: Apache-2.0
// Built where liblzma is.
#include <gtest/gtest.h>

#include "base/file.h"
#include "recordings/testing.h"

namespace trimtab {
namespace {

TEST(ReadLoads, CompressedWithXz) {
  const std::string packed = kFixtures + "trace.topk.txt.xz", plain = kFixtures + "trace.topk.txt";
  EXPECT_EQ(detect_format(packed).format, FileFormat::kTopK);
  EXPECT_EQ(detect_format(packed).kind, FileKind::kLoads);
  const Recording recording = read_recording(packed);
  EXPECT_EQ(recording.load.counts, read_recording(plain).load.counts);
  EXPECT_EQ(recording.file, packed);
  // Errors count the bytes of the content, under the name it would have.
  expect_refused<FormatError>([&] { read_recording(packed, {.format = FileFormat::kCsv}); },
                              plain + " at byte 0: line 1: ", 0);
  const std::vector<std::byte> image = read_file(packed);
  expect_refused<FormatError>([&] { parse_recording(std::span(image).first(100), "a.xz"); },
                              "a.xz at byte 100: xz: ", 100);
  expect_refused<FormatError>([&] { read_placement(packed, {.num_ranks = 1}); },
                              "loads, no placement (topk)");
  const std::string twice = kFixtures + "twice.xz";
  expect_refused<FormatError>([&] { read_recording(twice); }, "compressed with xz twice", 0);
}

}  // namespace
}  // namespace trimtab
