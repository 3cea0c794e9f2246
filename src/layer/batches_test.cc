// SPDX-License-Identifier: Apache-2.0
#include "trimtab/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/testing.h"
#include "layer/layer_testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using namespace layer_testing;

class Batches : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string dispatcher() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }

  // One rank's layer with two lanes, and its batch.
  struct Fixture {
    Fixture(const World& world, Communicator& c, int64_t num_tokens)
        : comm(c),
          second(c.duplicate()),
          layer(world.layer(Placement::linear(1, kExperts, c.size()), c.rank())),
          a(c, layer, team),
          b(*second, layer, team),
          tokens(num_tokens),
          x(input_of(c.rank(), num_tokens)),
          out(x.size()) {
      for (int t = 0; t < static_cast<int>(tokens); ++t) token_ids.push_back((7 * t + 3) % kVocab);
      whole =
          forward(layer, x, a.lane, {.token_ids = token_ids, .local_counts = sized(counts_whole)});
    }
    ConstRows rows() const { return {x.data(), tokens, kHidden}; }
    Rows to() { return {out.data(), tokens, kHidden}; }
    std::span<int32_t> sized(std::vector<int32_t>& slots) {
      slots.assign(Placement::linear(1, kExperts, comm.size()).slots_of_rank(comm.rank()), 0);
      return slots;
    }

    Communicator& comm;
    const std::unique_ptr<Communicator> second;
    const MoeLayer layer;
    Team team{1};
    OwnLane a, b;
    int64_t tokens;
    std::vector<float> x, out, whole;
    std::vector<int32_t> token_ids, counts, counts_whole;
  };
};
INSTANTIATE_TEST_SUITE_P(DispatchersAndRanks, Batches,
                         testing::Combine(testing::Values("pull", "fused", "all_to_all", "packed"),
                                          testing::ValuesIn(rank_counts({1, 2, 4}))),
                         [](const auto& param) {
                           return std::get<0>(param.param) + "_" +
                                  std::to_string(std::get<1>(param.param));
                         });

TEST_P(Batches, TwoHalvesEqualTheWholeAndAnyRankMayVeto) {
  const World world({.dispatcher = dispatcher(), .hashed = true});
  run_group(ranks(), [&](Communicator& comm) {
    const int last = comm.size() - 1;
    const auto expect_cut = [&](int64_t tokens, bool willing, bool cut) {
      Fixture f(world, comm, tokens);
      EXPECT_EQ(forward_overlapped(f.layer, f.rows(), f.to(), f.a.lane, f.b.lane, willing,
                                   {.token_ids = f.token_ids, .local_counts = f.sized(f.counts)}),
                cut);
      EXPECT_EQ(f.out, f.whole);
      EXPECT_EQ(f.counts, f.counts_whole);
      EXPECT_EQ(f.a.workspace.mark(), 0U);
    };
    expect_cut(5 + comm.rank(), true, true);
    expect_cut(5, comm.rank() != last, false);
    expect_cut(comm.rank() == last ? 1 : 8, true, false);
    expect_cut(comm.rank() == last ? 0 : 8, true, false);
    expect_cut(2, true, true);
  });
}

// Layers of as many tokens need one agreement.
TEST_P(Batches, HalvesAfterOneAgreement) {
  const World world({.dispatcher = dispatcher(), .hashed = true});
  run_group(ranks(), [&](Communicator& comm) {
    Fixture f(world, comm, 5 + comm.rank());
    EXPECT_FALSE(can_halve(comm.rank() == 0 ? 1 : 5, true, f.a.lane));
    EXPECT_FALSE(can_halve(5, comm.rank() != 0, f.a.lane));
    ASSERT_TRUE(can_halve(5 + comm.rank(), true, f.a.lane));
    for (int layer = 0; layer < 3; ++layer) {
      std::ranges::fill(f.out, -1.0F);
      forward_in_halves(f.layer, f.rows(), f.to(), f.a.lane, f.b.lane,
                        {.token_ids = f.token_ids, .local_counts = f.sized(f.counts)});
      EXPECT_EQ(f.out, f.whole);
      EXPECT_EQ(f.counts, f.counts_whole);
    }
    Fixture one(world, comm, 1);
    EXPECT_THROW(forward_in_halves(one.layer, one.rows(), one.to(), one.a.lane, one.b.lane),
                 InvalidArgument);
  });
}

// K9: experts run over large batches in chunks of rows.
TEST_P(Batches, ChunksEqualTheWholeAndRanksWithFewerTokensTakePart) {
  const World world({.dispatcher = dispatcher(), .hashed = true});
  run_group(ranks(), [&](Communicator& comm) {
    const int64_t tokens = comm.rank() == comm.size() - 1 ? 17 : 4 * comm.rank();
    Fixture f(world, comm, tokens);
    int64_t captured = 0;
    const Capture capture = [&](int, int64_t first_token, int, std::span<const int32_t> ids) {
      EXPECT_EQ(first_token, 100 + captured);
      captured += static_cast<int64_t>(ids.size()) / kTopK;
    };
    for (const int64_t chunk : {1, 5, 16, 17, 32}) {
      captured = 0;
      std::ranges::fill(f.out, -1.0F);
      const int64_t chunks = forward_in_chunks(f.layer, f.rows(), f.to(), f.a.lane, chunk,
                                               {.capture = &capture,
                                                .first_token = 100,
                                                .token_ids = f.token_ids,
                                                .local_counts = f.sized(f.counts)});
      EXPECT_EQ(chunks, (17 + chunk - 1) / chunk);
      EXPECT_EQ(f.out, f.whole);
      EXPECT_EQ(f.counts, f.counts_whole);
      if (chunk < tokens) {
        EXPECT_EQ(captured, tokens);
      }
    }
  });
}

// R13: picks that were captured are replayed, in one call or in parts, whatever the rows are.
TEST_P(Batches, CapturedPicksAreReplayed) {
  const World world({.dispatcher = dispatcher()});
  run_group(ranks(), [&](Communicator& comm) {
    const int64_t tokens = comm.rank() == comm.size() - 1 ? 17 : 4 * comm.rank();
    Fixture f(world, comm, tokens);
    std::vector<int32_t> captured, again;
    std::vector<int32_t>* to = &captured;
    const Capture capture = [&](int, int64_t, int, std::span<const int32_t> ids) {
      to->insert(to->end(), ids.begin(), ids.end());
    };
    EXPECT_EQ(forward(f.layer, f.x, f.a.lane, {.capture = &capture}), f.whole);
    EXPECT_EQ(forward(f.layer, f.x, f.a.lane, {.picks = captured}), f.whole);
    forward_in_chunks(f.layer, f.rows(), f.to(), f.a.lane, 5, {.picks = captured});
    EXPECT_EQ(f.out, f.whole);
    // Other rows, which would be routed otherwise.
    to = &again;
    const std::vector<float> x = input_of(comm.rank(), tokens, 900);
    forward(f.layer, x, f.a.lane,
            {.capture = &capture, .picks = captured, .local_counts = f.sized(f.counts)});
    EXPECT_EQ(again, captured);
    EXPECT_EQ(f.counts, f.counts_whole);
  });
}

TEST(BatchSizes, WrongSizesAreRefused) {
  const World world({});
  run_group(1, [&](Communicator& comm) {
    const MoeLayer layer = world.layer(Placement::linear(1, kExperts, 1), 0);
    Team team(1);
    OwnLane own(comm, layer, team);
    Lane& lane = own.lane;
    std::vector<float> x(4 * kHidden), out(x.size());
    const ConstRows rows(x.data(), 4, kHidden);
    EXPECT_THROW(forward_in_chunks(layer, rows, Rows(out.data(), 4, kHidden), lane, 0),
                 InvalidArgument);
    EXPECT_THROW(forward_in_chunks(layer, rows, Rows(out.data(), 3, kHidden), lane, 2),
                 InvalidArgument);
    EXPECT_THROW(forward_overlapped(layer, rows, Rows(out.data(), 3, kHidden), lane, lane, true),
                 InvalidArgument);
  });
}

// Lanes and rows that would be in each other's way are refused before any peer hears of the call.
class Reuse : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Dispatchers, Reuse,
                         testing::Values("pull", "fused", "all_gather", "all_to_all", "mc2",
                                         "packed"),
                         [](const auto& param) { return param.param; });

TEST_P(Reuse, ALaneHasOneCallAtATime) {
  TRIMTAB_NEEDS_RANKS(2);
  const World world({.dispatcher = GetParam()});
  run_group(2, [&](Communicator& comm) {
    const MoeLayer layer = world.layer(Placement::linear(1, kExperts, 2), comm.rank());
    const auto second = comm.duplicate();
    Team team(1);
    OwnLane a(comm, layer, team), b(*second, layer, team);
    const std::vector<float> x = input_of(comm.rank(), 4);
    std::vector<float> out(x.size()), other(x.size());
    const ConstRows rows(x.data(), 4, kHidden);
    const Rows to(out.data(), 4, kHidden), to_other(other.data(), 4, kHidden);
    EXPECT_THROW(forward_overlapped(layer, rows, to, a.lane, a.lane, true), InvalidArgument);
    {
      Call first = layer.forward(rows, to, a.lane);
      EXPECT_THROW(layer.forward(rows, to_other, a.lane), InvalidArgument);
      EXPECT_THROW(overlap(std::move(first), layer.forward(rows, to_other, a.lane)),
                   InvalidArgument);
    }
    // Other lanes over the same ranks' order of operations, or the same memory.
    Workspace more(comm.allocate(layer.workspace_bytes(kMaxTokens)));
    Lane same_comm{comm, more, team}, same_memory{*second, a.workspace, team};
    EXPECT_THROW(forward_overlapped(layer, rows, to, a.lane, same_comm, true), InvalidArgument);
    EXPECT_THROW(forward_overlapped(layer, rows, to, a.lane, same_memory, true), InvalidArgument);
    EXPECT_THROW(overlap(layer.forward(rows, to, a.lane), layer.forward(rows, to_other, same_comm)),
                 InvalidArgument);
    Call call = layer.forward(rows, to, a.lane);
    Call moved = std::move(call);
    EXPECT_THROW(run(std::move(call)), InvalidArgument);  // NOLINT: moved from
    EXPECT_THROW(overlap(std::move(call), layer.forward(rows, to_other, b.lane)),  // NOLINT
                 InvalidArgument);
    // Nothing has happened: the same lanes work.
    EXPECT_EQ(a.lane.has_exchange, false);
    overlap(std::move(moved), layer.forward(rows, to_other, b.lane));
    EXPECT_EQ(out, other);
    EXPECT_EQ(a.workspace.mark(), 0U);
  });
}

// The first microbatch has begun when the second one's call is made, so the group fails.
TEST_P(Reuse, MicrobatchesOfSeveralLayersNeedTwoLanes) {
  TRIMTAB_NEEDS_RANKS(2);
  const World world({.dispatcher = GetParam()});
  const auto body = [&](Communicator& comm) {
    const MoeLayer layer = world.layer(Placement::linear(1, kExperts, 2), comm.rank());
    Team team(1);
    OwnLane own(comm, layer, team);
    const std::vector<float> x = input_of(comm.rank(), 4);
    std::vector<float> out(x.size()), other(x.size());
    overlap(2, [&](int64_t, int microbatch) {
      return layer.forward(ConstRows(x.data(), 4, kHidden),
                           Rows(microbatch == 0 ? out.data() : other.data(), 4, kHidden), own.lane);
    });
  };
  EXPECT_THROW(run_group(2, body), InvalidArgument);
}

// The first microbatch may have ended by then, if its peers are fast. That of a single rank, which
// waits for nobody, always has.
TEST(Overlap, MicrobatchesThatNeverWaitNeedTwoLanesToo) {
  const World world({.dispatcher = "all_to_all"});
  run_group(1, [&](Communicator& comm) {
    const MoeLayer layer = world.layer(Placement::linear(1, kExperts, 1), 0);
    const auto second = comm.duplicate();
    Team team(1);
    OwnLane a(comm, layer, team), b(*second, layer, team);
    const std::vector<float> x = input_of(0, 4);
    std::vector<float> out(x.size()), other(x.size());
    const auto in_lanes = [&](Lane& of_first, Lane& of_second) {
      overlap(2, [&](int64_t, int microbatch) {
        return layer.forward(ConstRows(x.data(), 4, kHidden),
                             Rows(microbatch == 0 ? out.data() : other.data(), 4, kHidden),
                             microbatch == 0 ? of_first : of_second);
      });
    };
    EXPECT_THROW(in_lanes(a.lane, a.lane), InvalidArgument);
    in_lanes(a.lane, b.lane);
    EXPECT_EQ(out, other);
  });
}

TEST_P(Reuse, XAndOutMustBeApart) {
  TRIMTAB_NEEDS_RANKS(2);
  const World world({.dispatcher = GetParam()});
  run_group(2, [&](Communicator& comm) {
    const MoeLayer layer = world.layer(Placement::linear(1, kExperts, 2), comm.rank());
    const auto second = comm.duplicate();
    Team team(1);
    OwnLane a(comm, layer, team), b(*second, layer, team);
    std::vector<float> memory = random_floats(12 * kHidden, 9, 1.0F);
    const ConstRows x(memory.data(), 8, kHidden);
    // The rows of out begin one chunk behind those of x: no chunk overlaps itself.
    const Rows behind(memory.data() + 4 * kHidden, 8, kHidden);
    EXPECT_THROW(forward_in_chunks(layer, x, behind, a.lane, 4), InvalidArgument);
    EXPECT_THROW(forward_overlapped(layer, x, behind, a.lane, b.lane, true), InvalidArgument);
    EXPECT_THROW(run(layer.forward(x, behind, a.lane)), InvalidArgument);
    EXPECT_THROW(run(layer.forward(x, Rows(memory.data() + 1, 8, kHidden), a.lane)),
                 InvalidArgument);
    // Columns of one matrix are apart.
    std::vector<float> wide = random_floats(8 * 2 * kHidden, 9, 1.0F);
    const ConstRows left(reinterpret_cast<const std::byte*>(wide.data()), 8, kHidden, 2 * kHidden,
                         DType::kF32);
    const Rows right(reinterpret_cast<std::byte*>(wide.data() + kHidden), 8, kHidden, 2 * kHidden,
                     DType::kF32);
    EXPECT_EQ(forward_in_chunks(layer, left, right, a.lane, 4), 2);
  });
}

}  // namespace
}  // namespace trimtab
