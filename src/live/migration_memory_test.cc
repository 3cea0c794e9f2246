// SPDX-License-Identifier: Apache-2.0
// Ten thousand replans take no more memory than the first few.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>

#include "base/allocation_count.h"
#include "base/test_effort.h"
#include "comm/testing.h"
#include "live/testing.h"

namespace trimtab::test {
namespace {

struct Memory {
  int64_t allocations;     // operator new so far
  int64_t heap, resident;  // bytes in use
};

// Every rank calls it.
Memory memory(Communicator& comm) {
  comm.barrier();
  const int64_t allocations = allocation_count();
  comm.barrier();
  const auto heap = ::mallinfo2();
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  comm.barrier();
  return {allocations, static_cast<int64_t>(heap.uordblks + heap.hblkhd),
          resident * ::sysconf(_SC_PAGESIZE)};
}

// E8: channels for moving weights exist before the first move.
TEST(MigrationMemory, StaysFlatOverTenThousandReplans) {
  constexpr int kLayers = 1, kExperts = 6, kPlans = 40, kRounds = kSanitized ? 6 : 250, kWarm = 2;
  for (const int ranks : rank_counts({2, 4})) {
    const std::vector<int> slots(ranks, 12 / ranks);
    Table experts;
    for (uint32_t e = 0; e < kLayers * kExperts; ++e)
      experts.push_back(make_mlp(Scheme::kW8A8, e, nullptr, 32, 32));
    run_group(ranks, [&](Communicator& comm) {
      std::mt19937 random(23);
      std::vector<Placement> plans;
      for (int p = 0; p < kPlans; ++p)
        plans.push_back(random_placement(kLayers, kExperts, slots, random));
      MigratingRank rank(plans.back(), experts, slots[0], comm);
      std::array<Memory, kRounds> after;
      for (Memory& m : after) {
        for (const Placement& to : plans) {
          rank.switch_to(to);
          // As a layer that goes on with the new experts.
          for (int l = 0; l < kLayers; ++l)
            EXPECT_EQ(rank.slots->experts(l)->num_local(), slots[0]);
        }
        m = memory(comm);
      }
      rank.expect_right();
      const auto allocated = [&](size_t round) {
        return after[round].allocations - after[round - 1].allocations;
      };
      EXPECT_EQ(allocated(kRounds - 1), allocated(kWarm));
      if (kSanitized) return;
      const Memory &warm = after[kWarm], &last = after.back();
      EXPECT_LE(last.heap, warm.heap + (int64_t{64} << 10));
      EXPECT_LE(last.resident, warm.resident + (int64_t{4} << 20));
    });
  }
}

}  // namespace
}  // namespace trimtab::test
