// SPDX-License-Identifier: Apache-2.0
// What callers can get wrong, and that each is said with the values.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no InvalidArgument";
}

using Words = std::vector<std::string>;
void expect_error(const std::function<void()>& call, const Words& parts) {
  const std::string text = error_of(call);
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

class DispatchErrors : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int kHidden = 8;
  static constexpr int64_t kMaxTokens = 4;
  const std::vector<int32_t> first_slots_{0, 6};
  const DispatchShape shape_{kMaxTokens, kHidden, 2, DType::kF32, first_slots_};
  std::vector<float> x_ = std::vector<float>(64, 1.0F);
  std::vector<int32_t> ids_ = {0, 1, 2, 3, 4, 5};
  std::vector<float> weights_ = std::vector<float>(6, 0.5F);

  Request request() { return {ConstRows(x_.data(), 3, kHidden), ids_, weights_, 2, false}; }

  // The error of one dispatch on one rank.
  void expect_dispatch_error(const Request& request, const std::vector<std::string>& parts) {
    run_ranks(1, [&](Communicator& comm) {
      const auto dispatcher = make_dispatcher(GetParam(), shape_, 0);
      Workspace workspace(dispatcher->workspace_bytes());
      Team team(1);
      Lane lane{comm, workspace, team};
      expect_error([&] { dispatcher->dispatch(request, lane); }, parts);
      EXPECT_EQ(workspace.mark(), 0U);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(All, DispatchErrors,
                         testing::Values("pull", "fused", "all_gather", "all_to_all", "mc2",
                                         "packed", "grouped"),
                         [](const auto& chosen) { return std::string(chosen.param); });

TEST_P(DispatchErrors, IdsOutOfRangeAreNamedByTokenAndPick) {
  ids_[3] = 6;
  expect_dispatch_error(request(), {"token 1", "pick 1", "id 6", "[-1, 6)"});
  ids_[3] = -2;
  expect_dispatch_error(request(), {"token 1", "pick 1", "id -2"});
}

TEST_P(DispatchErrors, WrongShapesAreNamed) {
  Request wrong = request();
  wrong.x = ConstRows(x_.data(), 3, kHidden - 1);
  expect_dispatch_error(wrong, {"7 columns", "8"});
  wrong = request();
  wrong.x.dtype = DType::kBF16;
  expect_dispatch_error(wrong, {"BF16", "F32"});
  wrong = request();
  wrong.x.stride = 3;
  expect_dispatch_error(wrong, {"stride 3"});
  wrong = request();
  wrong.ids = std::span(ids_).first(5);
  expect_dispatch_error(wrong, {"5 ids", "3 tokens"});
  wrong = request();
  wrong.weights = std::span(weights_).first(4);
  expect_dispatch_error(wrong, {"4 weights"});
  wrong = request();
  wrong.top_k = 3;
  expect_dispatch_error(wrong, {"top_k 3", "1 to 2"});
  wrong.top_k = 0;
  expect_dispatch_error(wrong, {"top_k 0"});
}

TEST_P(DispatchErrors, WeightOnInputNeedsOnePick) {
  Request wrong = request();
  wrong.weight_on_input = true;
  expect_dispatch_error(wrong, {"weight_on_input", "got 2"});
}

TEST_P(DispatchErrors, ScalesThatDoNotFitTheRows) {
  Request wrong = request();
  wrong.scales = ConstRows(weights_.data(), 3, 1);
  expect_dispatch_error(wrong, {"scales", "[3, 1]", "F32"});
  const auto expect_quantised = [&](DType dtype, int hidden, ConstRows scales,
                                    const std::vector<std::string>& parts) {
    run_ranks(1, [&](Communicator& comm) {
      const auto dispatcher =
          make_dispatcher(GetParam(), {kMaxTokens, hidden, 1, dtype, first_slots_}, 0);
      Workspace workspace(dispatcher->workspace_bytes());
      Team team(1);
      Lane lane{comm, workspace, team};
      const ConstRows x(reinterpret_cast<const std::byte*>(x_.data()), 2, hidden, hidden, dtype);
      const Request quantised{
          x, std::span(ids_).first(2), std::span(weights_).first(2), 1, true, scales};
      expect_error([&] { dispatcher->dispatch(quantised, lane); }, parts);
    });
  };
  expect_quantised(DType::kI8, 8, {}, {"scales", "[0, 0]", "F32 [2, 1]"});
  expect_quantised(DType::kI8, 8, ConstRows(weights_.data(), 2, 2), {"[2, 2]", "F32 [2, 1]"});
  const auto* bytes = reinterpret_cast<const std::byte*>(weights_.data());
  expect_quantised(DType::kF8E4M3, 64, ConstRows(bytes, 2, 1, 1, DType::kF8E8M0),
                   {"[2, 1]", "F8_E8M0 [2, 2]"});
  expect_quantised(DType::kF8E4M3, 64, ConstRows(bytes, 2, 2, 2, DType::kF8E8M0),
                   {"weight_on_input", "F8_E4M3"});
}

// C5: a capacity per rank that follows from the largest batch, and an error beyond it.
TEST_P(DispatchErrors, MoreTokensThanReserved) {
  ids_.assign(2 * (kMaxTokens + 1), 0);
  weights_.assign(ids_.size(), 1.0F);
  Request wrong = request();
  wrong.x = ConstRows(x_.data(), kMaxTokens + 1, kHidden);
  expect_dispatch_error(wrong, {"5 tokens", "at most 4"});
}

TEST_P(DispatchErrors, LanesThatDoNotFit) {
  run_ranks(2, [&](Communicator& comm) {
    const auto dispatcher = make_dispatcher(GetParam(), shape_, 0);
    Workspace workspace(dispatcher->workspace_bytes()), small(dispatcher->workspace_bytes() - 64);
    Team team(1);
    Lane two_ranks{comm, workspace, team};
    expect_error([&] { dispatcher->dispatch(request(), two_ranks); }, {"rank 0 of 1", "of 2"});
    const auto alone = comm.split(comm.rank(), 0);
    Lane too_small{*alone, small, team};
    expect_error([&] { dispatcher->dispatch(request(), too_small); }, {"workspace"});
    EXPECT_EQ(small.mark(), 0U);
  });
}

TEST_P(DispatchErrors, StepsOutOfOrder) {
  run_ranks(1, [&](Communicator& comm) {
    const auto dispatcher = make_dispatcher(GetParam(), shape_, 0);
    Workspace workspace(dispatcher->workspace_bytes());
    Team team(1);
    Lane lane{comm, workspace, team};
    const ExchangePtr exchange = dispatcher->dispatch(request(), lane);
    std::vector<float> y(6 * kHidden), out(3 * kHidden);
    const Rows y_rows(y.data(), 6, kHidden), out_rows(out.data(), 3, kHidden);
    expect_error([&] { exchange->tokens(); }, {"tokens()", "kArrived"});
    expect_error([&] { exchange->send_back(y_rows, Left::kSum); }, {"send_back()", "kArrived"});
    expect_error([&] { exchange->poll(Stage::kReturned); }, {"kReturned", "send_back"});
    exchange->wait(Stage::kArrived);
    EXPECT_TRUE(exchange->poll(Stage::kArrived));
    expect_error([&] { exchange->finish(out_rows); }, {"finish()"});
    // Where tokens arrive whole there may be a row a token, else there is one a pick.
    const bool takes_sums = dispatcher->kind().brings_tokens;
    expect_error([&] { exchange->send_back(y_rows, Left::kNothing); },
                 takes_sums ? Words{"[6, 8]", "[3, 8]"} : Words{"kNothing", "one per pick"});
    expect_error([&] { exchange->send_back(y_rows.slice(0, 5), Left::kSum); },
                 {"[5, 8]", "[6, 8]"});
    exchange->send_back(y_rows, Left::kSum);
    expect_error([&] { exchange->send_back(y_rows, Left::kSum); }, {"send_back()"});
    exchange->wait(Stage::kReturned);
    expect_error([&] { exchange->wait(Stage::kDrained); }, {"kDrained", "finish"});
    expect_error([&] { exchange->finish(out_rows.slice(0, 2)); }, {"[2, 8]", "[3, 8]"});
    exchange->finish(out_rows);
    exchange->wait(Stage::kDrained);
    EXPECT_TRUE(exchange->poll(Stage::kReturned));
  });
}

// B25: a mistake made elsewhere: a bounded exchange without checks: absent maps, unset counts,
//     undocumented limits of sizes.
TEST_P(DispatchErrors, ALaneHasOneExchangeAtATime) {
  run_ranks(1, [&](Communicator& comm) {
    const auto dispatcher = make_dispatcher(GetParam(), shape_, 0);
    Workspace workspace(2 * dispatcher->workspace_bytes());
    Team team(1);
    Lane lane{comm, workspace, team};
    ExchangePtr first = dispatcher->dispatch(request(), lane);
    expect_error([&] { dispatcher->dispatch(request(), lane); }, {"another exchange is in flight"});
    std::vector<float> y(6 * kHidden), out(3 * kHidden);
    first->wait(Stage::kArrived);
    first->send_back(Rows(y.data(), 6, kHidden), Left::kSum);
    first->wait(Stage::kReturned);
    first->finish(Rows(out.data(), 3, kHidden));
    first->wait(Stage::kDrained);
    first.reset();
    workspace.release(0);
    EXPECT_NO_THROW(dispatcher->dispatch(request(), lane));
  });
}

TEST_P(DispatchErrors, RowsThatAreStillReadAreNotWritten) {
  run_ranks(1, [&](Communicator& comm) {
    const auto dispatcher = make_dispatcher(GetParam(), shape_, 0);
    Workspace workspace(dispatcher->workspace_bytes());
    Team team(1);
    Lane lane{comm, workspace, team};
    const ExchangePtr exchange = dispatcher->dispatch(request(), lane);
    exchange->wait(Stage::kArrived);
    std::vector<float> y(6 * kHidden), out(3 * kHidden);
    const Rows y_rows(y.data(), 6, kHidden), out_rows(out.data(), 3, kHidden);
    expect_error([&] { exchange->send_back(Rows(x_.data() + 1, 6, kHidden), Left::kSum); },
                 {"y overlaps the x"});
    exchange->send_back(y_rows, Left::kSum);
    exchange->wait(Stage::kReturned);
    expect_error([&] { exchange->finish(Rows(x_.data() + kHidden, 3, kHidden)); },
                 {"out overlaps the x"});
    expect_error([&] { exchange->finish(Rows(y.data() + 2, 3, kHidden)); }, {"out overlaps the y"});
    exchange->finish(out_rows);
    exchange->wait(Stage::kDrained);
  });
}

TEST_P(DispatchErrors, ImpossibleShapes) {
  const auto error = [&](DispatchShape shape, int rank, const std::vector<std::string>& parts) {
    expect_error([&] { make_dispatcher(GetParam(), shape, rank); }, parts);
  };
  DispatchShape shape = shape_;
  error(shape, 1, {"rank 1 of 1"});
  error(shape, -1, {"rank -1"});
  const std::vector<int32_t> none, no_zero{1, 6}, backwards{0, 6, 5};
  shape.first_slots = none;
  error(shape, 0, {"first_slots"});
  shape.first_slots = no_zero;
  error(shape, 0, {"first_slots"});
  shape.first_slots = backwards;
  error(shape, 0, {"rank 1", "6 to 5"});
  shape = shape_;
  shape.dtype = DType::kF16;
  error(shape, 0, {"F16"});
  shape = shape_;
  shape.dtype = DType::kF8E4M3;
  error(shape, 0, {"F8_E4M3", "hidden 8"});
  shape = shape_;
  shape.capacity = 3;
  error(shape, 0, {"capacity of 3"});
  shape = shape_;
  shape.top_k = 0;
  error(shape, 0, {"top_k 0"});
  shape = shape_;
  shape.hidden = 0;
  error(shape, 0, {"hidden 0"});
  shape = shape_;
  shape.max_tokens = -1;
  error(shape, 0, {"max_tokens -1"});
  shape.max_tokens = int64_t{1} << 31;
  error(shape, 0, {"more than"});
  shape.max_tokens = std::numeric_limits<int64_t>::max();
  error(shape, 0, {"more than"});
}

TEST(DispatchShapes, ExactOrderAndCapacityAreCheckedByKind) {
  const std::vector<int32_t> first{0, 6};
  DispatchShape shape{4, 8, 2, DType::kF32, first};
  expect_error([&] { make_pull_batched_dispatcher(shape, 0); },
               {"pull_batched", "capacity of 0", "at least 1"});
  shape.capacity = int64_t{1} << 40;
  expect_error([&] { make_pull_batched_dispatcher(shape, 0); },
               {"pull_batched", "each of 6 experts"});
  shape.capacity = 0;
  shape.exact_order = true;
  for (const char* kind : {"pull", "all_to_all", "mc2", "packed"})
    EXPECT_NO_THROW(make_dispatcher(kind, shape, 0));
  for (const char* kind : {"all_gather", "grouped"}) {
    expect_error([&] { make_dispatcher(kind, shape, 0); }, {kind, "exact_order"});
  }
  const std::vector<int32_t> hosts{0};
  expect_error([&] { make_hybrid_dispatcher(shape, hosts, 0); }, {"hybrid", "exact_order"});
  shape.exact_order = false;
  expect_error([&] { make_hybrid_dispatcher(shape, {}, 0); }, {"hybrid", "0 ranks for 1"});
  expect_error([&] { make_all_gather_dispatcher(shape, 0, std::vector{2, 1}); },
               {"all_gather", "2 ranks in all for 1"});
}

class SharingErrors : public DispatchErrors {
 protected:
  // Of 5 experts, of which number 1 has a replica.
  const SplitTable table_{Placement(1, 5, {6}, {0, 1, 2, 3, 4, 1}), 0};
  DispatchShape sharing_shape() const {
    DispatchShape shape = shape_;
    shape.num_experts = 5;
    return shape;
  }
  void expect_sharing_error(const Request& request, const DispatchShape& shape,
                            const std::vector<std::string>& parts) {
    run_ranks(1, [&](Communicator& comm) {
      const auto dispatcher = make_dispatcher(GetParam(), shape, 0);
      Workspace workspace(dispatcher->workspace_bytes());
      Team team(1);
      Lane lane{comm, workspace, team};
      expect_error([&] { dispatcher->dispatch(request, lane); }, parts);
      EXPECT_EQ(workspace.mark(), 0U);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(All, SharingErrors, testing::Values("pull", "all_to_all"),
                         [](const auto& chosen) { return std::string(chosen.param); });

TEST_P(SharingErrors, IdsAreLogicalExperts) {
  ids_ = {0, 1, 2, 3, 4, 5};
  Request wrong = request();
  wrong.replicas = {&table_};
  expect_sharing_error(wrong, sharing_shape(), {"token 2", "pick 1", "id 5", "[-1, 5)"});
}

TEST_P(SharingErrors, ShapesAndTablesThatDoNotFit) {
  Request wrong = request();
  wrong.replicas = {&table_};
  expect_sharing_error(wrong, shape_, {"num_experts"});
  const SplitTable six(Placement::linear(1, 6, 1), 0),
      seven_slots(Placement(1, 5, {7}, {0, 1, 2, 3, 4, 1, 2}), 0);
  const SplitTable two_ranks(Placement(1, 5, {3, 3}, {0, 1, 2, 3, 4, 1}), 0);
  for (const SplitTable* table : {&six, &seven_slots, &two_ranks}) {
    wrong.replicas = {table};
    expect_sharing_error(wrong, sharing_shape(), {"replicas of", "expected 5, 6 and 1"});
  }
  DispatchShape shape = sharing_shape();
  shape.num_experts = 7;
  expect_error([&] { make_dispatcher(GetParam(), shape, 0); }, {"7 logical experts in 6 slots"});
}

TEST_P(SharingErrors, AWorkspaceWithoutRoomForTheSplit) {
  run_ranks(1, [&](Communicator& comm) {
    const auto dispatcher = make_dispatcher(GetParam(), sharing_shape(), 0);
    Workspace small(dispatcher->workspace_bytes() - 64);
    Team team(1);
    Lane lane{comm, small, team};
    ids_[5] = 0;
    Request shared = request();
    shared.replicas = {&table_};
    expect_error([&] { dispatcher->dispatch(shared, lane); }, {GetParam(), "workspace"});
    EXPECT_EQ(small.mark(), 0U);
  });
}

// Rank 1 comes without replicas, or, which pull notices, with others or another rule: no rank
// finishes, none hangs.
TEST_P(SharingErrors, RanksThatDisagree) {
  const std::vector<int32_t> first{0, 3, 6};
  DispatchShape shape = sharing_shape();
  shape.first_slots = first;
  ids_ = {0, 1, 2, 3, 4, 1};
  const SplitTable one(Placement(1, 5, {3, 3}, {0, 1, 2, 3, 4, 1}), 0);
  const SplitTable other(Placement(1, 5, {3, 3}, {1, 0, 2, 3, 4, 1}), 0);
  std::vector<Replicas> seconds = {{}};
  if (GetParam() == std::string("pull")) {
    seconds.push_back({&other});
    seconds.push_back({&one, SplitRule::kRoundRobin});
  }
  for (const Replicas& second : seconds) {
    const auto body = [&](Communicator& comm) {
      const auto dispatcher = make_dispatcher(GetParam(), shape, comm.rank());
      Workspace workspace(dispatcher->workspace_bytes());
      Team team(1);
      Lane lane{comm, workspace, team};
      Request mine = request();
      mine.replicas = comm.rank() == 0 ? Replicas{&one} : second;
      dispatcher->dispatch(mine, lane)->wait(Stage::kArrived);
      ADD_FAILURE() << "rank " << comm.rank() << " got rows";
    };
    EXPECT_THROW(run_ranks(2, body), Error);
  }
}

TEST(SharingShapes, AreForThoseThatShareOut) {
  const std::vector<int32_t> first{0, 6}, hosts{0};
  const DispatchShape shape{
      .max_tokens = 4, .hidden = 8, .top_k = 2, .first_slots = first, .num_experts = 5};
  for (const char* kind : {"all_gather", "grouped", "mc2"}) {
    expect_error(
        [&] { make_dispatcher(kind, shape, 0, hosts); },
        {kind, "can't share", "all_to_all, fused, hybrid, packed, pull and pull_batched can"});
  }
  for (const char* kind : {"pull", "all_to_all", "packed", "hybrid"})
    EXPECT_TRUE(make_dispatcher(kind, shape, 0, hosts)->shares_out());
  EXPECT_TRUE(make_sliced_dispatcher(make_pull_dispatcher(shape, 0), 4)->shares_out());
}

TEST(DispatcherNames, UnknownOnesGetTheList) {
  const std::vector<int32_t> first{0, 1};
  expect_error([&] { make_dispatcher("push", {1, 1, 1, DType::kF32, first}, 0); },
               {"push", "all_gather", "all_to_all", "fused", "grouped", "hybrid", "mc2", "packed",
                "pull and pull_batched"});
}

TEST(WithoutSharedMemory, PullSaysSoAndAllGatherWorks) {
  Scene scene{.tokens = {3, 5}, .top_k = 2};
  scene.slots = place(Placing::kLinear, 2, scene.num_experts);
  fill(scene, Routes::kUniform, 9);
  std::vector<float> out(scene.x.size());
  const auto body = [&](Communicator& comm) {
    const DispatchShape shape = shape_of(scene, 5, 2);
    const auto pull = make_pull_dispatcher(shape, comm.rank());
    const auto all_gather = make_all_gather_dispatcher(shape, comm.rank());
    Workspace workspace(std::max(pull->workspace_bytes(), all_gather->workspace_bytes()));
    Team team(1);
    Lane lane{comm, workspace, team};
    expect_error([&] { RankCall(scene, *pull, lane); }, {"pull", "no board", "packed"});
    EXPECT_EQ(workspace.mark(), 0U);
    exchange_once(scene, *all_gather, lane, Left::kWeightAndSum, out);
  };
  run_ranks(2, body, {.hosts = {0, 1}});
  EXPECT_EQ(difference(scene, expect(scene), out, 4), "");
}

// Ranks that were called with different top_k: one of them notices, nobody hangs.
TEST(DisagreeingRanks, AllGatherNoticesAnotherTopK) {
  const std::vector<int32_t> first{0, 2, 4};
  const std::vector<float> x(8, 1.0F), weights(4, 1.0F);
  const std::vector<int32_t> ids{0, 1, 2, 3};
  EXPECT_THROW(
      run_ranks(2,
                [&](Communicator& comm) {
                  const auto dispatcher =
                      make_all_gather_dispatcher({4, 4, 2, DType::kF32, first}, comm.rank());
                  Workspace workspace(dispatcher->workspace_bytes());
                  Team team(1);
                  Lane lane{comm, workspace, team};
                  const auto picks = static_cast<size_t>(2 * (1 + comm.rank()));
                  const Request request{ConstRows(x.data(), 2, 4), std::span(ids).first(picks),
                                        std::span(weights).first(picks), 1 + comm.rank(), false};
                  dispatcher->dispatch(request, lane)->wait(Stage::kArrived);
                }),
      InvalidArgument);
}

}  // namespace
}  // namespace trimtab
