// SPDX-License-Identifier: Apache-2.0
#include "live/window.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <random>

#include "trimtab/error.h"

namespace trimtab {
namespace {

// Replicas, a rank without slots, and a permuted layer.
Placement some_placement() {
  return {2, 3, {2, 0, 2}, {0, 1, 2, 0, 2, 2, 1, 0}};
}

struct Recorded {
  std::vector<LoadRecorder> recorders;
  std::vector<int64_t> nanoseconds;  // [ranks] that experts take in each step
  explicit Recorded(const Placement& placement, int64_t window)
      : nanoseconds(cells(placement.num_ranks())) {
    for (int r = 0; r < placement.num_ranks(); ++r) {
      recorders.emplace_back(placement.num_layers(), placement.slots_of_rank(r), window);
    }
  }
  void step(Phase phase, const std::function<int32_t(int rank, int layer, int slot)>& count) {
    for (size_t r = 0; r < recorders.size(); ++r) {
      recorders[r].begin_step(phase);
      for (int layer = 0; layer < recorders[r].num_layers(); ++layer) {
        const auto row = recorders[r].counts(layer);
        for (size_t s = 0; s < row.size(); ++s)
          row[s] = count(static_cast<int>(r), layer, static_cast<int>(s));
      }
      recorders[r].expert_nanoseconds() += nanoseconds[r];
      recorders[r].keep_step();
    }
  }
  std::vector<std::vector<std::byte>> pack(int64_t steps, std::optional<Phase> phase,
                                           int64_t parts) const {
    std::vector<std::vector<std::byte>> packed;
    for (const LoadRecorder& recorder : recorders)
      packed.push_back(pack_window(RecordedSteps(recorder, steps), phase, parts));
    return packed;
  }
};

int64_t total(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// E2: all ranks' counts brought together, layer by layer.
TEST(Window, EveryStepAloneIsWhatMergeLoadsGives) {
  const Placement placement = some_placement();
  Recorded recorded(placement, 5);
  std::mt19937 random(1);
  for (int i = 0; i < 9; ++i) {
    recorded.step(Phase::kDecode,
                  [&](int, int, int) { return static_cast<int32_t>(random() % 100000); });
  }
  const Window window = unpack_windows(placement, recorded.pack(5, {}, 100));
  std::vector<const LoadRecorder*> all;
  for (const LoadRecorder& recorder : recorded.recorders) all.push_back(&recorder);
  EXPECT_EQ(window.load.counts, merge_loads(placement, all).counts);
  double rows = 0;
  for (int layer = 0; layer < window.rank_loads.num_layers(); ++layer) {
    for (const double of_rank : window.rank_loads.window(layer)) rows += of_rank;
  }
  EXPECT_EQ(rows, static_cast<double>(total(window.load.counts)));
  EXPECT_EQ(window.rank_loads.at(0, 0)[1], 0);
}

TEST(Window, PartsAddUpAndPhasesAreTold) {
  const Placement placement = some_placement();
  Recorded recorded(placement, 20);
  for (int i = 0; i < 12; ++i) {
    recorded.step(i % 3 == 0 ? Phase::kPrefill : Phase::kDecode,
                  [&](int, int, int) { return i % 3 == 0 ? 1000 : i; });
  }
  const Window decode = unpack_windows(placement, recorded.pack(12, Phase::kDecode, 4));
  EXPECT_EQ(decode.load.num_steps, 4);
  EXPECT_EQ(total(decode.load.counts), 8 * (1 + 2 + 4 + 5 + 7 + 8 + 10 + 11));
  const Window prefill = unpack_windows(placement, recorded.pack(12, Phase::kPrefill, 100));
  EXPECT_EQ(prefill.load.num_steps, 4);
  EXPECT_EQ(total(prefill.load.counts), 8 * 4 * 1000);
  EXPECT_EQ(unpack_windows(placement, recorded.pack(2, Phase::kPrefill, 4)).load.num_steps, 0);
  EXPECT_THROW(recorded.pack(13, {}, 4), InvalidArgument);
}

// Whatever the window has of them: other phases, steps that the ring has no more, and steps under
// other experts.
TEST(Window, RowsOfRanksAreThoseOfAllSteps) {
  const Placement placement = some_placement();
  Recorded recorded(placement, 3);
  for (int i = 0; i < 7; ++i) {
    recorded.step(i % 2 == 0 ? Phase::kPrefill : Phase::kDecode,
                  [](int rank, int, int) { return 100 + rank; });
    if (i == 5) {
      for (LoadRecorder& recorder : recorded.recorders) recorder.begin_epoch(1, 2);
    }
  }
  const std::vector<int64_t> wanted = {7 * 4 * 100, 0, 7 * 4 * 102};
  EXPECT_EQ(unpack_windows(placement, recorded.pack(1, Phase::kPrefill, 4)).rank_rows, wanted);
  EXPECT_EQ(unpack_windows(placement, recorded.pack(0, {}, 4)).rank_rows, wanted);
}

// What was recorded when the window was taken, however many steps have come since.
TEST(Window, StaysAsItWasWhileStepsGoOn) {
  const Placement placement = some_placement();
  Recorded recorded(placement, 6);
  for (int i = 0; i < 4; ++i) recorded.step(Phase::kDecode, [&](int, int, int) { return i; });
  const RecordedSteps before(recorded.recorders[0], 3);
  const auto packed = pack_window(before, {}, 3);
  for (int i = 0; i < 3; ++i) {
    recorded.step(Phase::kPrefill, [](int, int, int) { return 1000; });
    EXPECT_EQ(pack_window(before, {}, 3), packed);
    EXPECT_EQ(before.num_rows(), 4 * (0 + 1 + 2 + 3));
  }
  EXPECT_THROW(RecordedSteps(recorded.recorders[0], 7), InvalidArgument);
}

// What a step costs is not to be seen in a sum of steps.
TEST(Window, HasSingleStepsWhereThereIsACost) {
  const CostModel cost = CostModel::of_rows();
  const Placement placement = some_placement();
  Recorded recorded(placement, 10);
  for (int i = 0; i < 10; ++i)
    recorded.step(Phase::kDecode, [&](int, int layer, int) { return 10 * i + layer; });
  const auto unpacked = [&](int64_t parts) {
    std::vector<std::vector<std::byte>> packed;
    for (const LoadRecorder& recorder : recorded.recorders)
      packed.push_back(pack_window(RecordedSteps(recorder, 9), {}, parts, &cost));
    return unpack_windows(placement, packed);
  };
  const Window window = unpacked(3);  // steps 1 to 3, 4 to 6, 7 to 9
  ASSERT_EQ(window.single.num_steps, 3);
  for (int64_t part = 0; part < 3; ++part) {
    for (int layer = 0; layer < 2; ++layer) {
      const int64_t each = 10 * (3 * part + 3) + layer;
      const auto counts = window.single.at(part, layer);
      EXPECT_EQ(total({counts.begin(), counts.end()}), 4 * each);
    }
  }
  EXPECT_EQ(total(window.load.counts), 4 * (2 * 450 + 9));
  EXPECT_EQ(unpacked(9).single.num_steps, 0) << "the parts are single steps";
}

// What ranks took is of single steps and of the rows in each slot: not of sums of either.
TEST(Window, RankTimesAreOfTheRowsInEachSlotOfAStep) {
  const CostModel cost({{1, 100}, {10, 130}, {20, 400}}, {1000, 1000, 500});
  const Placement placement = some_placement();
  Recorded recorded(placement, 9);
  const auto rows = [](int step, int layer, int slot) { return (step % 4) * (5 + layer + slot); };
  for (int i = 0; i < 9; ++i)
    recorded.step(Phase::kDecode, [&](int, int layer, int slot) { return rows(i, layer, slot); });
  const auto unpacked = [&](int64_t parts, const CostModel* of) {
    std::vector<std::vector<std::byte>> packed;
    for (const LoadRecorder& recorder : recorded.recorders)
      packed.push_back(pack_window(RecordedSteps(recorder, 9), {}, parts, of));
    return unpack_windows(placement, packed, of);
  };
  for (const int parts : {3, 9}) {
    const Window window = unpacked(parts, &cost);
    ASSERT_EQ(window.rank_times.num_steps(), parts);
    for (int part = 0; part < parts; ++part) {
      const int step = (part + 1) * 9 / parts - 1;
      for (int layer = 0; layer < 2; ++layer) {
        const int64_t work = cost.time(rows(step, layer, 0)) + cost.time(rows(step, layer, 1));
        const auto times = window.rank_times.at(part, layer);
        EXPECT_EQ(times[0], static_cast<double>(work)) << part << " " << layer;
        EXPECT_EQ(times[1], 0);
        EXPECT_EQ(times[2], static_cast<double>(2 * work)) << "at half the speed";
      }
    }
    EXPECT_EQ(window.load.counts, unpacked(parts, nullptr).load.counts);
  }
  EXPECT_EQ(unpacked(3, nullptr).rank_times.num_steps(), 0);
}

// Steps of the phase alone count, and each rank's own slots.
TEST(Window, HasWhatExpertsTookBesideWhatTheCostSays) {
  const CostModel cost({{1, 100'000}, {10, 190'000}, {20, 400'000}});
  const Placement placement = some_placement();
  Recorded recorded(placement, 9);
  for (int i = 0; i < 6; ++i) {
    for (int r = 0; r < 3; ++r) recorded.nanoseconds[cells(r)] = 100 * i + r;
    recorded.step(i % 2 == 0 ? Phase::kPrefill : Phase::kDecode, [&](int, int, int) { return i; });
  }
  std::vector<std::vector<std::byte>> packed;
  for (const LoadRecorder& recorder : recorded.recorders)
    packed.push_back(pack_window(RecordedSteps(recorder, 6), Phase::kDecode, 2, &cost));
  const int64_t layer = (cost.time(1) + cost.time(3) + cost.time(5)) / 1000;
  EXPECT_EQ(unpack_windows(placement, packed, &cost).times,
            (std::vector<RankTime>{{2 * 2 * layer, 900}, {0, 903}, {2 * 2 * layer, 906}}));
  EXPECT_EQ(unpack_windows(placement, recorded.pack(6, {}, 2)).times, std::vector<RankTime>(3))
      << "nobody asked";
}

TEST(Window, SmallCountsTakeOneByte) {
  Recorded recorded(some_placement(), 4);
  for (int i = 0; i < 4; ++i) recorded.step(Phase::kDecode, [](int, int, int) { return 30; });
  // Before them stand the rows so far, 480 or 0, and the number of parts; behind them that of
  // single steps, and two times.
  EXPECT_EQ(recorded.pack(4, {}, 4)[0].size(), 2 + 1 + 4 * 2 * 2 + 3);
  EXPECT_EQ(recorded.pack(4, {}, 1)[0].size(), 2 + 1 + 1 * 2 * 2 + 3);
  EXPECT_EQ(recorded.pack(4, {}, 4)[1].size(), 1U + 1U + 3U);
}

TEST(Window, RefusesRowsBelowZero) {
  Recorded recorded(some_placement(), 2);
  recorded.step(Phase::kDecode, [](int, int layer, int slot) {
    return layer == 1 && slot == 1 ? std::numeric_limits<int32_t>::min() : 3;
  });
  try {
    pack_window(RecordedSteps(recorded.recorders[2], 1), {}, 1);
    ADD_FAILURE() << "not refused";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "window: slot 1 of layer 1 has got -2147483648 rows");
  }
  // Where the window does not reach back to them, what it has is good.
  EXPECT_NO_THROW(pack_window(RecordedSteps(recorded.recorders[2], 0), {}, 1));
}

TEST(Window, RefusesWhatDoesNotFit) {
  const Placement placement = some_placement();
  Recorded recorded(placement, 2);
  recorded.step(Phase::kDecode, [](int, int, int) { return 200; });
  auto packed = recorded.pack(1, {}, 1);
  EXPECT_NO_THROW(unpack_windows(placement, packed));
  auto wrong = packed;
  wrong[1].clear();
  EXPECT_THROW(unpack_windows(placement, wrong), InvalidArgument);
  wrong = packed;
  wrong[2].pop_back();
  EXPECT_THROW(unpack_windows(placement, wrong), InvalidArgument);
  wrong = packed;
  wrong[2].push_back(std::byte{0});
  EXPECT_THROW(unpack_windows(placement, wrong), InvalidArgument);
  wrong = packed;
  wrong[1][1] = std::byte{2};  // rank 1 has no slots, and says that these are parts
  EXPECT_THROW(unpack_windows(placement, wrong), InvalidArgument);
  for (auto& bytes : wrong) bytes = std::vector<std::byte>(4, std::byte{0xff});
  EXPECT_THROW(unpack_windows(placement, wrong), InvalidArgument);
  wrong.pop_back();
  EXPECT_THROW(unpack_windows(placement, wrong), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
