// SPDX-License-Identifier: Apache-2.0
// Loads of vLLM-Ascend: the tokens of slots, [layers, ranks, slots] or [stages, layers, ranks,
// slots].
#include "files/npy_header.h"
#include "recordings/testing.h"

namespace trimtab {
namespace {

std::string npy(std::vector<int64_t> shape, const std::vector<int64_t>& values) {
  std::string image = npy_header(DType::kI64, shape);
  image.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
  return image;
}

// [stages, 2 layers, 2 ranks, 3 slots]: 1, 2, 3, ...
std::string loads(int stages) {
  std::vector<int64_t> values;
  for (int i = 0; i < 12 * stages; ++i) values.push_back(i + 1);
  return npy({stages, 2, 2, 3}, values);
}

TEST(VllmAscendLoads, AreSummedOverTheSlotsOfAnExpert) {
  const PlacementFile under = some_placement();  // {0, 1, 2, 3, 0, 1} and {3, 2, 0, 1, 0, 3}
  const RecordingOptions options{.recorded_under = &under.placement};
  const std::string image = loads(2);
  EXPECT_EQ(detect_format(bytes_of(image), "x.npy").format, FileFormat::kVllmAscend);
  const Recording two = parse_recording(bytes_of(image), "x.npy", options);
  EXPECT_EQ(two.format, FileFormat::kVllmAscend);
  EXPECT_EQ(shape(two), (std::vector<int64_t>{2, 2, 4}));
  EXPECT_EQ(two.load.counts,
            (std::vector<int64_t>{1 + 5, 2 + 6, 3, 4, 9 + 11, 10, 8, 7 + 12,  //
                                  13 + 17, 14 + 18, 15, 16, 21 + 23, 22, 20, 19 + 24}));
  // Three dimensions are one step, where the format is named.
  std::vector<int64_t> values(12, 1);
  values[0] = 5;
  const Recording one = parse_loads(npy({2, 2, 3}, values), FileFormat::kVllmAscend, options);
  EXPECT_EQ(one.load.counts, (std::vector<int64_t>{6, 2, 1, 1, 2, 1, 1, 2}));
}

TEST(VllmAscendLoads, NeedThePlacementThatTheyWereRecordedUnder) {
  const std::string image = loads(1);
  expect_refused<InvalidArgument>([&] { parse_recording(bytes_of(image), "x.npy"); },
                                  "x.npy: vLLM-Ascend counts the tokens of slots; give the "
                                  "placement that was in use (--recorded-under)");
  const PlacementFile uneven = some_placement({2, 4}), under = some_placement();
  const auto refused = [&](const std::string& text, const Placement& placement,
                           const std::string& part) {
    expect_refused<FormatError>(
        [&] { parse_loads(text, FileFormat::kVllmAscend, {.recorded_under = &placement}); }, part);
  };
  refused(image, uneven.placement, "npy: loads of 2 layers x 2 ranks x 3 slots; the placement has");
  refused(npy({1, 2, 3, 2}, std::vector<int64_t>(12)), under.placement, "2 layers x 3 ranks");
  refused(npy({2, 6}, std::vector<int64_t>(12)), under.placement,
          "[layers, ranks, slots] or [stages, layers, ranks, slots] expected");
  refused(npy({1, 2, 2, 3}, {-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}), under.placement,
          "element [0, 0, 0, 0] is -1");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  refused(npy({2, 2, 3}, {kMost, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}), under.placement,
          "sum to more than 63 bits hold");
}

}  // namespace
}  // namespace trimtab
