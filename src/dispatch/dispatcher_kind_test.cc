// SPDX-License-Identifier: Apache-2.0
#include "trimtab/dispatcher_kind.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "trimtab/dispatcher.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// A dispatcher of each kind does what the table says, no less.
TEST(DispatcherKinds, EachKeepsWhatItPromises) {
  const std::vector<int32_t> first{0, 6}, hosts{0};
  for (const DispatcherKind& kind : dispatcher_kinds()) {
    DispatchShape shape{4, 8, 2, DType::kF32, first};
    if (kind.format == Format::kBatched) shape.capacity = 8;
    const auto dispatcher = make_dispatcher(kind.name, shape, 0, hosts);
    EXPECT_EQ(&dispatcher->kind(), &dispatcher_kind(kind.name));
    EXPECT_EQ(dispatcher->name(), kind.name);
    EXPECT_EQ(dispatcher->format(), kind.format);
    EXPECT_FALSE(kind.summary.empty()) << kind.name;
    EXPECT_LE(kind.summary.size(), 80U) << kind.name;
    const auto makes = [&](const DispatchShape& asked) {
      try {
        return make_dispatcher(kind.name, asked, 0, hosts) != nullptr;
      } catch (const InvalidArgument&) {
        return false;
      }
    };
    DispatchShape exact = shape, sharing = shape, capacity = shape, results = shape;
    exact.exact_order = true;
    sharing.num_experts = 5;
    capacity.capacity = shape.capacity == 0 ? 8 : 0;
    EXPECT_EQ(makes(exact), kind.order != SumOrder::kByRank) << kind.name;
    EXPECT_EQ(makes(sharing), kind.shares_out) << kind.name;
    EXPECT_FALSE(makes(capacity)) << kind.name;
    results.results = DType::kI8;
    EXPECT_EQ(makes(results), kind.sends_results) << kind.name;
    try {
      make_dispatcher(kind.name, shape, 0);
      EXPECT_FALSE(kind.needs_hosts) << kind.name;
    } catch (const InvalidArgument&) {
      EXPECT_TRUE(kind.needs_hosts) << kind.name;
    }
    // Two ranks without common memory.
    const std::vector<int32_t> halves{0, 3, 6}, two_hosts{0, 1};
    const auto use = [&](Communicator& comm) {
      DispatchShape two = shape;
      two.first_slots = halves;
      const auto mine = make_dispatcher(kind.name, two, comm.rank(), two_hosts);
      const auto owned = mine->make_groups(comm);
      const auto groups = pointers_to(owned);
      Workspace workspace(mine->workspace_bytes());
      Team team(1);
      Lane lane{comm, workspace, team, groups};
      const std::vector<float> x(8, 1.0F), weights(2, 1.0F);
      const std::vector<int32_t> ids{0, 5};
      try {
        mine->dispatch({ConstRows(x.data(), 1, 8), ids, weights, 2}, lane)->wait(Stage::kArrived);
        EXPECT_FALSE(kind.needs_board) << kind.name;
      } catch (const InvalidArgument&) {
        EXPECT_TRUE(kind.needs_board) << kind.name;
      } catch (const CommError&) {  // the peer is through and has dropped its exchange
      }
    };
    run_ranks(2, use, {.hosts = two_hosts});
  }
}

TEST(DispatcherKinds, AreListedByName) {
  EXPECT_TRUE(std::ranges::is_sorted(dispatcher_kinds(), {}, &DispatcherKind::name));
  EXPECT_EQ(dispatcher_names([](const DispatcherKind& kind) { return kind.shares_out; }),
            "all_to_all, fused, hybrid, packed, pull and pull_batched");
  EXPECT_EQ(dispatcher_names([](const DispatcherKind& kind) { return !kind.output_is_reduced; }),
            "grouped");
  EXPECT_EQ(dispatcher_names([](const DispatcherKind& kind) { return kind.brings_tokens; }),
            "all_gather, grouped and packed");
  EXPECT_EQ(dispatcher_names([](const DispatcherKind& kind) { return kind.sends_results; }),
            "all_to_all, hybrid, mc2 and packed");
  EXPECT_EQ(dispatcher_names([](const DispatcherKind&) { return false; }), "");
  try {
    dispatcher_kind("push");
    ADD_FAILURE() << "there is no push";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(dispatcher_names()), std::string::npos);
  }
}

}  // namespace
}  // namespace trimtab
