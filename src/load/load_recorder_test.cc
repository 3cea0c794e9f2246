// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/allocation_count.h"
#include "trimtab/error.h"
#include "trimtab/load.h"

namespace trimtab {
namespace {

using Counts = std::vector<int32_t>;

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

// One step in which every slot of every layer gets `count`.
void step(LoadRecorder& recorder, int32_t count, Phase phase = Phase::kDecode) {
  recorder.begin_step(phase);
  for (int layer = 0; layer < recorder.num_layers(); ++layer)
    std::ranges::fill(recorder.counts(layer), count);
  recorder.keep_step();
}

// E1: rows per slot, layer and step from the dispatch counts, in a ring and summed by phase and
//     placement epoch: real tokens only, warm-up and profile runs left out, nothing carried over
//     between steps.
TEST(LoadRecorder, KeepsStepsInOrder) {
  LoadRecorder recorder(2, 3, 2);
  EXPECT_EQ(recorder.num_steps(), 0);
  EXPECT_TRUE(recorder.recorded().empty());
  for (int32_t n = 0; n < 2; ++n) {
    recorder.begin_step();
    for (int layer = 0; layer < 2; ++layer) {
      const std::span<int32_t> row = recorder.counts(layer);
      ASSERT_EQ(row.size(), 3U);
      for (size_t s = 0; s < 3; ++s) {
        EXPECT_EQ(row[s], 0);
        row[s] = 100 * n + 10 * layer + static_cast<int32_t>(s);
      }
    }
    recorder.keep_step();
  }
  EXPECT_EQ(recorder.num_steps(), 2);
  EXPECT_EQ(recorder.recorded(), (Counts{0, 1, 2, 10, 11, 12, 100, 101, 102, 110, 111, 112}));
}

TEST(LoadRecorder, TimesOfExpertsBeginAnewWithEachStep) {
  LoadRecorder recorder(1, 1, 2);
  for (int64_t n = 1; n <= 4; ++n) {
    recorder.begin_step();
    EXPECT_EQ(recorder.expert_nanoseconds(), 0);
    recorder.expert_nanoseconds() += 10 * n;
    recorder.expert_nanoseconds() += n;
    n == 3 ? recorder.skip_step() : recorder.keep_step();
  }
  const RecordedSteps steps(recorder, 2);
  EXPECT_EQ(steps.expert_nanoseconds(0), 22);
  EXPECT_EQ(steps.expert_nanoseconds(1), 44);
  EXPECT_THROW(recorder.expert_nanoseconds(), InvalidArgument);
}

// B20: a mistake made elsewhere: recorded load added to old rows; padding and profile runs counted.
TEST(LoadRecorder, TheRingOverwritesItsOldestStepsAndTheSumKeepsAll) {
  LoadRecorder recorder(1, 2, 3);
  for (int32_t n = 1; n <= 5; ++n) step(recorder, n);
  EXPECT_EQ(recorder.num_steps(), 5);
  EXPECT_EQ(recorder.valid_steps(0), 3);
  EXPECT_EQ(recorder.recorded(), (Counts{3, 3, 4, 4, 5, 5}));
  EXPECT_EQ(recorder.step(0, 0)[1], 3);
  EXPECT_EQ(recorder.step(2, 0)[0], 5);
  EXPECT_EQ(recorder.sum(0, Phase::kDecode)[0], 15);
  EXPECT_NE(refusal([&] { recorder.step(3, 0); }).find("step 3 of 3"), std::string::npos);
}

TEST(LoadRecorder, PhasesAreKeptApart) {
  LoadRecorder recorder(2, 1, 4);
  step(recorder, 7, Phase::kPrefill);
  step(recorder, 2);
  step(recorder, 3);
  EXPECT_EQ(recorder.sum(1, Phase::kPrefill)[0], 7);
  EXPECT_EQ(recorder.sum(1, Phase::kDecode)[0], 5);
  EXPECT_EQ(recorder.phase(0, 1), Phase::kPrefill);
  EXPECT_EQ(recorder.phase(1, 1), Phase::kDecode);
}

TEST(LoadRecorder, ANewEpochOfALayerForgetsThatLayerAlone) {
  LoadRecorder recorder(2, 1, 4);
  step(recorder, 5);
  step(recorder, 6);
  recorder.begin_epoch(1, 42);
  step(recorder, 8);
  EXPECT_EQ(recorder.version(0), 0U);
  EXPECT_EQ(recorder.version(1), 42U);
  EXPECT_EQ(recorder.valid_steps(0), 3);
  EXPECT_EQ(recorder.valid_steps(1), 1);
  EXPECT_EQ(recorder.step(0, 1)[0], 8);
  EXPECT_EQ(recorder.sum(0, Phase::kDecode)[0], 19);
  EXPECT_EQ(recorder.sum(1, Phase::kDecode)[0], 8);
  EXPECT_EQ(recorder.recorded(), (Counts{8, 8}));
}

TEST(LoadRecorder, ASkippedStepLeavesNoTrace) {
  LoadRecorder recorder(1, 2, 2);
  const auto skipped = [&] {
    recorder.begin_step(Phase::kPrefill);
    recorder.counts(0)[0] = 99;
    recorder.skip_step();
  };
  skipped();
  EXPECT_EQ(recorder.num_steps(), 0);
  step(recorder, 4);
  step(recorder, 5);
  skipped();  // where the ring is full, too
  EXPECT_EQ(recorder.recorded(), (Counts{4, 4, 5, 5}));
  EXPECT_EQ(recorder.sum(0, Phase::kPrefill)[0], 0);
  EXPECT_EQ(recorder.sum(0, Phase::kDecode)[0], 9);
}

TEST(LoadRecorder, RefusesWhatHasNoPlace) {
  LoadRecorder recorder(2, 1, 1);
  EXPECT_NE(refusal([&] { recorder.counts(0); }).find("without an open step"), std::string::npos);
  EXPECT_NE(refusal([&] { recorder.skip_step(); }), "");
  EXPECT_NE(refusal([&] { recorder.keep_step(); }), "");
  recorder.begin_step();
  EXPECT_NE(refusal([&] { recorder.begin_step(); }).find("still open"), std::string::npos);
  EXPECT_NE(refusal([&] { recorder.begin_epoch(0, 1); }).find("within a step"), std::string::npos);
  EXPECT_NE(refusal([&] { recorder.counts(2); }).find("layer 2 of 2"), std::string::npos);
  EXPECT_NE(refusal([&] { recorder.counts(-1); }), "");
  recorder.skip_step();
  EXPECT_NE(refusal([&] { recorder.skip_step(); }), "");  // one begin, one end
  EXPECT_NE(refusal([&] { recorder.counts(0); }), "");
  EXPECT_NE(refusal([] { LoadRecorder(0, 1, 1); }).find("0 layers"), std::string::npos);
  EXPECT_NE(refusal([] { LoadRecorder(1, -1, 1); }).find("-1 slots"), std::string::npos);
  EXPECT_NE(refusal([] { LoadRecorder(1, 1, -1); }).find("-1 steps"), std::string::npos);
  EXPECT_NE(refusal([] { LoadRecorder(1 << 20, 1 << 20, int64_t{1} << 40); }), "");
}

TEST(LoadRecorder, RecordingDoesNotAllocate) {
  LoadRecorder recorder(3, 4, 4);
  const int64_t before = allocation_count();
  for (int32_t n = 0; n < 10; ++n) step(recorder, n);
  recorder.begin_epoch(0, 1);
  EXPECT_EQ(allocation_count(), before);
}

// B21: a mistake made elsewhere: gathered loads read with layers and ranks mixed up.
TEST(MergeLoads, MapsSlotsToLogicalExperts) {
  // Layer 0: expert 0 has a replica on rank 2; layer 1 is permuted. Rank 1 holds nothing.
  const Placement placement(2, 3, {2, 0, 2}, {0, 1, 2, 0, 2, 2, 1, 0});
  LoadRecorder a(2, 2, 3), b(2, 0, 3), c(2, 2, 3);
  for (LoadRecorder* recorder : {&a, &b, &c}) {
    step(*recorder, 0);
    recorder->begin_step();
  }
  a.counts(0)[0] = 1;
  a.counts(0)[1] = 20;
  c.counts(0)[0] = 300;
  c.counts(0)[1] = 4000;
  a.counts(1)[0] = 5;
  a.counts(1)[1] = 60;
  c.counts(1)[0] = 700;
  c.counts(1)[1] = 8000;
  for (LoadRecorder* recorder : {&a, &b, &c}) recorder->keep_step();
  const LoadRecorder* recorders[] = {&a, &b, &c};
  const Load load = merge_loads(placement, recorders);
  EXPECT_EQ(load.num_steps, 2);
  EXPECT_EQ(load.num_layers, 2);
  EXPECT_EQ(load.num_experts, 3);
  EXPECT_EQ(load.counts, (std::vector<int64_t>{0, 0, 0, 0, 0, 0, 4001, 20, 300, 8000, 700, 65}));
  EXPECT_EQ(load.at(1, 1)[2], 65);
}

TEST(MergeLoads, KeepsEveryTokenOfEveryLayerAndStep) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const int layers = 1 + static_cast<int>(random() % 3);
    const int experts = 1 + static_cast<int>(random() % 9);
    std::vector<int> slots = {experts, static_cast<int>(random() % 4),
                              static_cast<int>(random() % 4)};
    const int total = slots[0] + slots[1] + slots[2];
    Counts held;
    for (int l = 0; l < layers; ++l) {
      for (int s = 0; s < total; ++s) {
        held.push_back(
            s < experts ? s : static_cast<int32_t>(random() % static_cast<uint32_t>(experts)));
      }
    }
    const Placement placement(layers, experts, slots, held);
    const int64_t steps = static_cast<int64_t>(random() % 4);
    std::vector<Counts> counts;
    std::vector<std::span<const int32_t>> views;
    for (const int s : slots) counts.emplace_back(static_cast<size_t>(steps * layers * s));
    for (Counts& c : counts) {
      for (int32_t& x : c) x = static_cast<int32_t>(random() % 1000);
      views.emplace_back(c);
    }
    const Load load = merge_loads(placement, steps, views);
    for (int64_t step = 0; step < steps; ++step) {
      for (int l = 0; l < layers; ++l) {
        int64_t want = 0;
        for (size_t r = 0; r < 3; ++r) {
          const auto row =
              views[r].subspan(static_cast<size_t>((step * layers + l) * slots[r]), slots[r]);
          want = std::accumulate(row.begin(), row.end(), want);
        }
        const auto got = load.at(step, l);
        ASSERT_EQ(std::accumulate(got.begin(), got.end(), int64_t{0}), want);
      }
    }
  }
}

TEST(MergeLoads, CountsMayExceed32BitsTogether) {
  const Placement placement(1, 1, {1, 1}, {0, 0});
  const Counts most = {2147483647};
  const std::span<const int32_t> views[] = {most, most};
  EXPECT_EQ(merge_loads(placement, 1, views).counts, (std::vector<int64_t>{4294967294}));
}

TEST(MergeLoads, RefusesWhatDoesNotFit) {
  const Placement placement = Placement::linear(1, 3, 2);
  LoadRecorder a(1, 2, 4), b(1, 1, 4), wide(1, 2, 4), deep(2, 1, 4);
  step(a, 0);
  const auto text = [&](std::vector<const LoadRecorder*> recorders) {
    return refusal([&] { merge_loads(placement, recorders); });
  };
  EXPECT_NE(text({&a, &b}).find("rank 1 recorded 0 steps, rank 0 1"), std::string::npos);
  for (LoadRecorder* recorder : {&b, &wide, &deep}) step(*recorder, 0);
  EXPECT_EQ(text({&a, &b}), "");
  EXPECT_NE(text({&a, &wide}).find("rank 1 recorded 1 layers of 2 slots"), std::string::npos);
  EXPECT_NE(text({&a, &deep}).find("rank 1 recorded 2 layers"), std::string::npos);
  EXPECT_NE(text({&a}).find("1 recorders"), std::string::npos);
  EXPECT_NE(text({}), "");

  const Counts two = {1, 2}, one = {3}, negative = {-4};
  const auto raw = [&](int64_t steps, std::vector<std::span<const int32_t>> views) {
    return refusal([&] { merge_loads(placement, steps, views); });
  };
  EXPECT_EQ(raw(1, {two, one}), "");
  EXPECT_NE(raw(1, {one, one}).find("rank 0 has 1 counts, not [1, 1, 2]"), std::string::npos);
  EXPECT_NE(raw(2, {two, one}), "");
  EXPECT_NE(raw(-1, {two, one}).find("-1 steps"), std::string::npos);
  EXPECT_NE(raw(1, {two}), "");
  EXPECT_NE(raw(1, {two, negative}).find("rank 1, step 0, layer 0, slot 0 has count -4"),
            std::string::npos);
}

}  // namespace
}  // namespace trimtab
