// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/mutable_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "policy/testing.h"
#include "policy/trim/slot_exchanges.h"

namespace trimtab {
namespace {

// After any changes, done and undone, everything is as it is for a layer that is made anew.
TEST(MutableLayer, IsAfterChangesAsOneMadeAnew) {
  constexpr int kRanks = 6, kSlots = 4, kExperts = 15;
  const std::vector<int32_t> first = equal_slots(kRanks, kSlots);
  const Topology topology{.node_of_rank = {0, 1, 0, 1, 2, 2}};
  std::vector<std::vector<double>> loads(10, std::vector<double>(kExperts));
  Random random(5);
  for (std::vector<double>& load : loads) {
    for (double& x : load) x = random.below(100);
  }
  std::vector<int32_t> start;
  for (int s = 0; s < kRanks * kSlots; ++s) start.push_back(s % kExperts);
  MutableLayer layer(SlotRanges(first), topology, kExperts, loads, start, start);
  SlotExchanges exchanges(layer, 7);
  EXPECT_EQ(layer.moves(), 0);
  int changed = 0, exchanged = 0, near = 0;
  for (int i = 0; i < 3'000; ++i) {
    const int kind = i % 5;
    const bool found = kind == 0   ? exchanges.two_slots()
                       : kind == 1 ? exchanges.two_slots_of_node()
                       : kind == 2 ? exchanges.replica()
                       : kind == 3 ? exchanges.two_ranks()
                                   : exchanges.two_slots_alike();
    if (!found) continue;
    ++changed;
    const std::vector<int32_t> before = layer.placement();
    const bool two_slots = kind != 2 && kind != 3;
    MutableLayer::Peaks least;
    if (two_slots)
      least = layer.peaks_at_least(exchanges.changes()[0].slot, exchanges.changes()[1].slot);
    layer.change(exchanges.changes());
    ASSERT_NE(layer.placement(), before);
    ASSERT_LE(least.window, layer.window_peak() + 1e-5);
    ASSERT_LE(least.runs, layer.runs_peak() + 1e-5);
    exchanged += two_slots ? 1 : 0;
    near += two_slots && least.runs > 0.9 * layer.runs_peak() ? 1 : 0;
    if (random.below(3) == 0) {
      layer.undo();
      ASSERT_EQ(layer.placement(), before);
    }
    const MutableLayer anew(SlotRanges(first), topology, kExperts, loads, start, layer.placement());
    ASSERT_EQ(layer.window_peak(), anew.window_peak());
    ASSERT_EQ(layer.runs_peak(), anew.runs_peak());
    ASSERT_EQ(layer.moves(), anew.moves());
    ASSERT_TRUE(std::ranges::equal(layer.on_node().values(), anew.on_node().values()));
    for (int e = 0; e < kExperts; ++e) {
      std::vector<int32_t> a(layer.slots_of(e).begin(), layer.slots_of(e).end());
      std::ranges::sort(a);
      ASSERT_TRUE(std::ranges::equal(a, anew.slots_of(e)));
      ASSERT_GT(layer.replicas(e), 0);
    }
  }
  EXPECT_GT(changed, 1'000);
  EXPECT_GT(near, exchanged * 8 / 10) << "of " << exchanged << " bounds on peaks";
  layer.go_to(start);
  EXPECT_EQ(layer.placement(), start);
  EXPECT_EQ(layer.moves(), 0);
}

TEST(MutableLayer, MeasuresPeaksInMeanLoads) {
  const std::vector<int32_t> first = equal_slots(2, 2);
  const Topology topology;
  const std::vector<std::vector<double>> loads = {{6, 2, 2}, {0, 4, 0}, {2, 2, 0}};
  const MutableLayer layer(SlotRanges(first), topology, 3, loads, {}, {0, 1, 0, 2});
  EXPECT_DOUBLE_EQ(layer.window_peak(), 1);                      // 3 + 2 of a mean of 5
  EXPECT_DOUBLE_EQ(layer.runs_peak(), (4.0 / 2 + 3.0 / 2) / 2);  // 4 of 2, 3 of 2
}

}  // namespace
}  // namespace trimtab
