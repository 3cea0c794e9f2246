// SPDX-License-Identifier: Apache-2.0
// The threads that serve leave everything that grows with the window to the background.
#include <cstdlib>
#include <new>

#include "live/balancer_testing.h"

namespace {

thread_local int64_t bytes_of_this_thread = 0;

}  // namespace

void* operator new(std::size_t size) {
  bytes_of_this_thread += static_cast<int64_t>(size);
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace trimtab {
namespace {

using namespace test;

// Two experts without replicas change places in each layer, and back in the next plan.
std::shared_ptr<const Policy> exchanges() {
  return std::make_shared<FakePolicy>([](const Problem& problem) {
    const Placement& now = problem.current;
    std::vector<int32_t> logical(now.logical().begin(), now.logical().end());
    for (int layer = 0; layer < now.num_layers(); ++layer) {
      const int first = layer * now.num_slots();
      std::swap(logical[cells(first + 2)], logical[cells(first + now.first_slot(1))]);
    }
    return Plan{.placement = now.with(std::move(logical), now.version() + 1)};
  });
}

// The most bytes that a thread of a rank took from the heap in one step, and the least.
struct Taken {
  int64_t most = 0, least = std::numeric_limits<int64_t>::max();
};

Taken taken_by_steps(int64_t interval, int64_t parts) {
  Scenario scenario;
  scenario.config.interval = interval;
  scenario.config.max_episodes = parts;
  scenario.config.plan_above_par = 0;
  scenario.policy = exchanges();
  scenario.load = uneven;
  scenario.keeps_log = false;
  Taken taken;
  run_group(2, [&](Communicator& comm) {
    Server server(scenario, comm, start_placement(2));
    for (int64_t step = 0; step < 4 * (interval + 8); ++step) {
      const int64_t before = bytes_of_this_thread;
      server.step();
      const int64_t bytes = bytes_of_this_thread - before;
      if (comm.rank() != 0) continue;
      taken.most = std::max(taken.most, bytes);
      taken.least = std::min(taken.least, bytes);
    }
    if (comm.rank() != 0) return;
    EXPECT_GE(server.balancer().layers_switched(), 2 * kLayers);
  });
  return taken;
}

// E2: a window of 256 steps in 128 parts asks no more of a step than one of 4 steps. Its loads
// alone are 128 parts x 3 layers x 8 experts of 8 bytes.
TEST(BalancerWork, OfAStepDoesNotGrowWithTheWindow) {
  TRIMTAB_NEEDS_RANKS(2);
  const Taken small = taken_by_steps(4, 2), large = taken_by_steps(256, 128);
  EXPECT_EQ(small.least, large.least);
  EXPECT_GT(large.most, large.least);
  EXPECT_LE(large.most, small.most + 1024);
}

}  // namespace
}  // namespace trimtab
