// SPDX-License-Identifier: Apache-2.0
// What a traced layer records, on every rank and with every dispatcher.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/trace_nesting.h"
#include "comm/testing.h"
#include "layer/layer_testing.h"

namespace trimtab {
namespace {

using namespace layer_testing;

using Slices = std::vector<std::pair<int64_t, int64_t>>;

Slices slices_of(const TraceBuffer& trace) {
  Slices slices;
  for (const TraceEvent& event : trace.events()) {
    if (event.kind == TraceEvent::Kind::kSlice)
      slices.emplace_back(event.time, event.time + event.duration);
  }
  return slices;
}

// The slices' names in the order of their ends, without the waits, which come only where there was
// something to wait for.
std::vector<std::string> work_of(const TraceBuffer& trace) {
  std::vector<std::string> names;
  for (const TraceEvent& event : trace.events()) {
    const std::string name = event.name;
    if (event.kind == TraceEvent::Kind::kSlice && !name.starts_with("wait for "))
      names.push_back(name);
  }
  return names;
}

class LayerTrace : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Dispatchers, LayerTrace,
                         testing::Values("pull", "all_gather", "all_to_all", "mc2", "packed"),
                         [](const auto& param) { return param.param; });

TEST_P(LayerTrace, EveryPartOfACallInOrder) {
  const World world({.dispatcher = GetParam(), .shared = true});
  const Placement placement = Placement::linear(1, kExperts, 2);
  run_group(2, [&](Communicator& comm) {
    const MoeLayer layer = world.layer(placement, comm.rank());
    Team team(1);
    OwnLane own(comm, layer, team);
    TraceBuffer trace(64);
    own.lane.trace = &trace;
    std::vector<int32_t> counts(placement.slots_of_rank(comm.rank()));
    const int64_t before = TraceBuffer::now();
    forward(layer, input_of(comm.rank(), tokens_of(comm.rank())), own.lane,
            {.local_counts = counts});
    const int64_t after = TraceBuffer::now();

    EXPECT_EQ(work_of(trace),
              (std::vector<std::string>{"route", "dispatch", "shared experts", "sort rows",
                                        "experts", "shared experts", "combine"}));
    const Slices slices = slices_of(trace);
    EXPECT_TRUE(slices_nest(slices));
    int64_t recorded = 0;
    for (const auto& [begin, end] : slices) {
      EXPECT_GE(begin, before);
      EXPECT_LE(end, after);
      recorded += end - begin;
    }
    EXPECT_LE(recorded, after - before);
    const auto rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    int64_t of_slice = -1, of_counter = -1;
    for (const TraceEvent& event : trace.events()) {
      if (event.kind == TraceEvent::Kind::kCounter && event.name == std::string("expert rows")) {
        of_counter = event.arg.value;
      }
      if (event.name != std::string("experts")) continue;
      EXPECT_EQ(event.layer, 7);
      of_slice = event.arg.value;
    }
    EXPECT_EQ(of_slice, rows);
    EXPECT_EQ(of_counter, rows);
  });
}

TEST_P(LayerTrace, TwoMicrobatchesOfAThreadDoNotOverlapInItsTrace) {
  const World world({.dispatcher = GetParam(), .shared = false});
  const Placement placement = Placement::linear(1, kExperts, 2);
  run_group(2, [&](Communicator& comm) {
    const std::unique_ptr<Communicator> other = comm.duplicate();
    const MoeLayer layer = world.layer(placement, comm.rank());
    Team team(1);
    OwnLane first(comm, layer, team), second(*other, layer, team);
    TraceBuffer trace(256);
    first.lane.trace = second.lane.trace = &trace;
    const std::vector<float> x = input_of(comm.rank(), 4);
    std::vector<float> out(2 * x.size());
    const Rows to(out.data(), 8, kHidden);
    const ConstRows rows(x.data(), 4, kHidden);
    for (int i = 0; i < 5; ++i) {
      overlap(layer.forward(rows, to.slice(0, 4), first.lane),
              layer.forward(rows, to.slice(4, 4), second.lane));
    }
    EXPECT_EQ(work_of(trace).size(), 10U * 5);
    EXPECT_TRUE(slices_nest(slices_of(trace)));
  });
}

// A rank that comes late is seen as the other's wait.
TEST(LayerTrace, WaitsAreToldApartFromWork) {
  const World world({.dispatcher = "pull"});
  const Placement placement = Placement::linear(1, kExperts, 2);
  run_group(2, [&](Communicator& comm) {
    constexpr auto kLate = std::chrono::milliseconds(300);
    const MoeLayer layer = world.layer(placement, comm.rank());
    Team team(1);
    OwnLane own(comm, layer, team);
    TraceBuffer trace(64);
    own.lane.trace = &trace;
    comm.barrier();
    if (comm.rank() == 1) std::this_thread::sleep_for(kLate);
    forward(layer, input_of(comm.rank(), 4), own.lane);
    int64_t waited = 0, longest_work = 0;
    for (const TraceEvent& event : trace.events()) {
      if (event.name == std::string("wait for tokens")) {
        waited += event.duration;
      } else {
        longest_work = std::max(longest_work, event.duration);
      }
    }
    if (comm.rank() == 0) {
      EXPECT_GT(waited, 100'000'000);
      EXPECT_LT(longest_work, waited);
    }
  });
}

}  // namespace
}  // namespace trimtab
