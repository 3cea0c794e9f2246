// SPDX-License-Identifier: Apache-2.0
// What the sanitizers are to see of ranks that are processes: here they are threads. The results of
// processes are compared in python/tests.
#include "rank_runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "moe_runtime.h"
#include "runtime_testing.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

constexpr int kExperts = 8, kRanks = 2, kLayers = 2;
constexpr int64_t kMaxTokens = 16;

struct Batch {
  std::vector<float> x, weights;
  std::vector<int32_t> ids;

  Batch(int64_t tokens, unsigned seed)
      : x(random_floats(tokens * kHidden, seed)), weights(random_floats(tokens * kTopK, seed + 1)) {
    // Most picks are the first rank's, so that there is something to balance.
    for (int64_t t = 0; t < tokens; ++t) {
      ids.push_back(static_cast<int32_t>((t + seed) % 3));
      ids.push_back(t % 5 == 4 ? -1 : static_cast<int32_t>(3 + (t + seed) % (kExperts - 3)));
    }
  }
  int64_t tokens() const { return std::ssize(weights) / kTopK; }
  RoutedTokens into(std::vector<float>& out) const {
    out.assign(x.size(), 7.0F);
    return {ConstRows(x.data(), tokens(), kHidden), ConstRows(ids.data(), tokens(), kTopK), weights,
            Rows(out.data(), tokens(), kHidden)};
  }
};

// The same experts on one rank.
class Reference {
 public:
  Reference()
      : table_(make_table(kExperts, 0, kExperts)),
        runtime_(*table_, kTopK, {.share_openmp = false}) {
    runtime_.add_layer(table_);
  }
  std::vector<float> operator()(const Batch& batch) {
    std::vector<float> out;
    runtime_.forward(0, batch.into(out), [] {});
    return out;
  }

 private:
  std::shared_ptr<const ExpertTable> table_;
  MoeRuntime runtime_;
};

std::unique_ptr<RankRuntime> start(Communicator& comm, RankRuntimeOptions options) {
  options.max_tokens = kMaxTokens;
  options.share_openmp = false;  // ranks are threads, which would share a pool
  auto runtime = std::make_unique<RankRuntime>(
      std::shared_ptr<Communicator>(std::shared_ptr<void>(), &comm), kExperts, kTopK, options);
  const ParallelLayout& layout = runtime->layout();
  const int own = layout.ep ? kExperts / comm.size() : kExperts;
  const ExpertParts parts{.parts = layout.expert_parts(),
                          .part = layout.ep ? 0 : layout.tp_rank(comm.rank())};
  const auto table = make_table(kExperts, layout.ep ? comm.rank() * own : 0, own, 1, parts);
  for (int layer = 0; layer < kLayers; ++layer) runtime->add_layer(table);
  runtime->start();
  return runtime;
}

TEST(RankRuntime, EachRankHasTokensOfItsOwn) {
  for (const int threads : {1, 2}) {
    run_ranks(kRanks, [threads](Communicator& comm) {
      const auto runtime = start(comm, {.threads = threads});
      Reference expected;
      for (const int64_t tokens : {int64_t{0}, int64_t{5}, kMaxTokens}) {
        const Batch batch(comm.rank() == 0 ? tokens : kMaxTokens - tokens, 10 + comm.rank());
        for (int layer = 0; layer < kLayers; ++layer) {
          std::vector<float> out;
          runtime->forward(layer, batch.into(out), true);
          EXPECT_EQ(out, expected(batch)) << tokens << " tokens, " << threads << " threads";
        }
      }
    });
  }
}

// Each rank of a group that has the same tokens gets their whole output: with the bits of one rank,
// or, where ranks sum parts, but for rounding.
TEST(RankRuntime, LayoutsGiveWhatOneRankGives) {
  for (const ParallelLayout layout : {ParallelLayout{.tp = 2},
                                      {.dp = 2},
                                      {.tp = 2, .dp = 2},
                                      {.tp = 2, .sp = false},
                                      {.tp = 2, .ep = false},
                                      {.tp = 2, .dp = 2, .ep = false},
                                      {.ep = false, .pcp = 2},
                                      {.tp = 2, .ep = false, .pcp = 2}}) {
    SCOPED_TRACE(name(layout));
    run_ranks(layout.ranks(), [layout](Communicator& comm) {
      const auto runtime = start(comm, {.threads = 2, .row_budget = {}, .layout = layout});
      Reference expected;
      for (const int64_t tokens : {int64_t{0}, int64_t{1}, int64_t{5}, kMaxTokens}) {
        const int group = layout.dp_rank(comm.rank());
        const Batch batch(group == 0 ? tokens : kMaxTokens - tokens, 10 + group);
        std::vector<float> out;
        runtime->forward(1, batch.into(out), true);
        const std::vector<float> wanted = expected(batch);
        for (size_t i = 0; i < out.size(); ++i) {
          if (layout.sums_parts()) {
            ASSERT_NEAR(out[i], wanted[i], 1e-4 * std::abs(wanted[i]) + 1e-3) << i;
          } else {
            ASSERT_EQ(out[i], wanted[i]) << i;
          }
        }
      }
    });
  }
}

// With a budget of the level load, and nearly all picks on the first rank's experts.
TEST(RankRuntime, RowBudgetsKeepTheBits) {
  run_ranks(kRanks, [](Communicator& comm) {
    const auto tight = start(comm, {.row_budget = 1}), roomy = start(comm, {.row_budget = 0});
    EXPECT_EQ(tight->row_budget(), kMaxTokens * kTopK);
    EXPECT_EQ(roomy->row_budget(), 0);
    Reference expected;
    Batch batch(kMaxTokens, 10 + comm.rank());
    for (int32_t& id : batch.ids) id = id < 0 ? id : id % 3;
    for (const auto& runtime : {tight.get(), roomy.get()}) {
      std::vector<float> out;
      runtime->forward(0, batch.into(out), true);
      EXPECT_EQ(out, expected(batch));
    }
  });
}

// The error of a rank's start, the same on every rank.
std::string refusal(const std::function<RankRuntimeOptions(int rank)>& options) {
  std::string text;
  try {
    run_ranks(kRanks, [&](Communicator& comm) { start(comm, options(comm.rank())); });
  } catch (const InvalidArgument& error) {
    text = error.what();
  }
  return text;
}

TEST(RankRuntime, RanksAgreeOnLayoutsAndBudgets) {
  const auto says = [](const std::string& text, const char* words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  const ParallelLayout slices{.tp = 2}, sums{.tp = 2, .sp = false};
  says(refusal([&](int rank) { return RankRuntimeOptions{.layout = rank == 0 ? slices : sums}; }),
       "layout");
  says(refusal([](int rank) { return RankRuntimeOptions{.row_budget = 1.0 + rank}; }),
       "row_budget");
  says(refusal([&](int) { return RankRuntimeOptions{.row_budget = 2, .layout = sums}; }),
       "a row budget is for layouts that send rows");
  says(refusal(
           [](int) { return RankRuntimeOptions{.dispatcher = "pull_batched", .row_budget = 2}; }),
       "takes no row budget");
  says(refusal([&](int) { return RankRuntimeOptions{.layout = slices, .same_tokens = true}; }),
       "take one of the two");
  says(refusal([&](int) {
         return RankRuntimeOptions{.layout = sums, .balancer = R"({"interval": 4})"};
       }),
       "a balancer needs whole experts");
  says(refusal([](int) { return RankRuntimeOptions{.layout = ParallelLayout{.tp = 3}}; }),
       "are not 2 ranks");
  EXPECT_EQ(refusal([&](int) { return RankRuntimeOptions{.layout = sums}; }), "");
}

// Ranks of a group must bring the same tokens.
TEST(RankRuntime, UnequalTokensInAGroupAreRefused) {
  for (const bool sp : {false, true}) {
    run_ranks(kRanks, [sp](Communicator& comm) {
      const auto runtime = start(comm, {.layout = ParallelLayout{.tp = 2, .sp = sp}});
      std::vector<float> out;
      try {
        runtime->forward(0, Batch(3 + comm.rank(), 1).into(out), true);
        ADD_FAILURE() << "they were not refused";
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find("all must have the same"), std::string::npos);
      } catch (const CommError&) {
        // A peer has found it first.
      }
    });
  }
}

TEST(RankRuntime, ExpertsMoveAndOutputsStay) {
  for (const bool same_tokens : {false, true}) {
    std::vector<std::vector<float>> outputs(kRanks);
    run_ranks(kRanks, [&](Communicator& comm) {
      const auto runtime = start(comm, {.threads = 2,
                                        .same_tokens = same_tokens,
                                        .balancer = R"({"interval": 4, "gate": false})",
                                        .redundant = kRanks});
      const std::vector<int32_t> before(runtime->placement().logical().begin(),
                                        runtime->placement().logical().end());
      Reference expected;
      int steps = 0;
      for (; steps < 2000 && runtime->layers_switched() < kLayers; ++steps) {
        const Batch batch(kMaxTokens, steps + (same_tokens ? 0 : 5000 * comm.rank()));
        for (int layer = 0; layer < kLayers; ++layer) {
          std::vector<float>& out = outputs[comm.rank()];
          runtime->forward(layer, batch.into(out), comm.rank() == 0);
          if (same_tokens) {
            comm.barrier();
            if (comm.rank() == 0) {
              const std::vector<float> wanted = expected(batch);
              for (size_t i = 0; i < wanted.size(); ++i)
                ASSERT_EQ(outputs[0][i] + outputs[1][i], wanted[i]) << "step " << steps;
            }
            comm.barrier();
          } else if (steps % 8 == 0) {
            EXPECT_EQ(out, expected(batch)) << "step " << steps;
          }
        }
      }
      EXPECT_GE(runtime->layers_switched(), kLayers) << steps;
      const std::span<const int32_t> after = runtime->placement().logical();
      EXPECT_NE(before, std::vector<int32_t>(after.begin(), after.end()));
      EXPECT_NE(runtime->metrics().find("trimtab_rebalances"), std::string::npos);
    });
  }
}

TEST(RankRuntime, SharesOutInTimeByOneCost) {
  for (const char* cost : {"rows", "measure"}) {
    std::vector<uint64_t> models(kRanks);
    run_ranks(kRanks, [&](Communicator& comm) {
      const auto runtime =
          start(comm, {.threads = 2,
                       .balancer = R"({"interval": 4, "gate": false, "split": "time"})",
                       .cost = cost,
                       .redundant = kRanks});
      Reference expected;
      for (int step = 0; step < 40; ++step) {
        const Batch batch(kMaxTokens, step + 5000 * comm.rank());
        for (int layer = 0; layer < kLayers; ++layer) {
          std::vector<float> out;
          runtime->forward(layer, batch.into(out), true);
          if (step % 8 == 0) {
            EXPECT_EQ(out, expected(batch)) << "step " << step;
          }
        }
      }
      EXPECT_EQ(runtime->split(), SplitRule::kTime);
      ASSERT_NE(runtime->cost(), nullptr);
      models[comm.rank()] = runtime->cost()->fingerprint();
    });
    EXPECT_EQ(models, std::vector<uint64_t>(kRanks, models[0])) << cost;
  }
}

std::vector<int32_t> slots_of(const Placement& placement) {
  return {placement.logical().begin(), placement.logical().end()};
}

TEST(RankRuntime, BeginsWithAPlacement) {
  // Replicas of hot experts, ranks with different numbers of slots, and moves both ways.
  const Placement placement(kLayers, kExperts, {5, 6}, {7, 1, 0, 3, 6, 5, 4, 2, 0, 1, 3,  //
                                                        0, 1, 2, 3, 4, 4, 5, 6, 7, 0, 1});
  for (const bool balances : {false, true}) {
    run_ranks(kRanks, [&](Communicator& comm) {
      const auto runtime = start(
          comm,
          {.threads = 2,
           .balancer = balances ? R"({"interval": 4, "gate": false, "plan_above_par": 0})" : "",
           .placement = placement});
      EXPECT_EQ(slots_of(runtime->placement()), slots_of(placement));
      Reference expected;
      for (int step = 0; step < 12; ++step) {
        const Batch batch(kMaxTokens, step + 5000 * comm.rank());
        for (int layer = 0; layer < kLayers; ++layer) {
          std::vector<float> out;
          runtime->forward(layer, batch.into(out), true);
          EXPECT_EQ(out, expected(batch)) << "step " << step;
        }
      }
    });
  }
}

TEST(RankRuntime, RefusesPlacementsThatDoNotFit) {
  const std::vector<int32_t> in_order = {0, 1, 2, 3, 4, 5, 6, 7};
  const Placement of_one_layer(1, kExperts, {4, 4}, in_order);
  std::vector<int32_t> twice = in_order;
  twice.insert(twice.end(), in_order.begin(), in_order.end());
  const Placement uneven(kLayers, kExperts, {3, 5}, twice);
  for (const Placement& wrong : {of_one_layer, uneven}) {
    run_ranks(kRanks, [&](Communicator& comm) {
      EXPECT_THROW(start(comm, {.placement = wrong}), InvalidArgument);
    });
  }
  // Ranks that were told different things.
  run_ranks(kRanks, [&](Communicator& comm) {
    const Placement even(kLayers, kExperts, {4, 4}, twice);
    RankRuntimeOptions options;
    if (comm.rank() == 1) options.placement = even;
    EXPECT_THROW(start(comm, options), InvalidArgument);
  });
}

TEST(RankRuntime, CountsTheLoadOfExperts) {
  const Placement placement(kLayers, kExperts, {5, 5}, {7, 1, 0, 3, 6, 5, 4, 2, 0, 1,  //
                                                        0, 1, 2, 3, 4, 4, 5, 6, 7, 0});
  for (const bool placed : {false, true}) {
    std::vector<int64_t> sum(kLayers * kExperts), wanted(sum);
    std::mutex mutex;
    run_ranks(kRanks, [&](Communicator& comm) {
      RankRuntimeOptions options;
      if (placed) options.placement = placement;
      const auto runtime = start(comm, options);
      for (int step = 0; step < 3; ++step) {
        const Batch batch(kMaxTokens, step + 5000 * comm.rank());
        for (int layer = 0; layer < kLayers; ++layer) {
          std::vector<float> out;
          runtime->forward(layer, batch.into(out), true);
        }
        const std::lock_guard lock(mutex);
        for (const int32_t id : batch.ids) {
          for (int layer = 0; id >= 0 && layer < kLayers; ++layer) ++wanted[layer * kExperts + id];
        }
      }
      const std::vector<int64_t> mine = runtime->take_load();
      EXPECT_EQ(runtime->take_load(), std::vector<int64_t>(mine.size()));
      const std::lock_guard lock(mutex);
      std::ranges::transform(sum, mine, sum.begin(), std::plus());
    });
    EXPECT_EQ(sum, wanted);
  }
}

TEST(RankRuntime, RefusesWhatDoesNotFit) {
  run_ranks(kRanks, [](Communicator& comm) {
    const auto runtime = start(comm, {});
    std::vector<float> out;
    EXPECT_THROW(runtime->forward(kLayers, Batch(1, 1).into(out), true), InvalidArgument);
    EXPECT_THROW(runtime->forward(0, Batch(kMaxTokens + 1, 1).into(out), true), InvalidArgument);
    EXPECT_THROW(runtime->add_layer(make_table(kExperts, 0, 4)), InvalidArgument);
    EXPECT_THROW(runtime->start(), InvalidArgument);
  });
}

// Experts that weigh their rows give the same bits; those that may move can't.
TEST(RankRuntime, ExpertsMayWeighTheirRows) {
  Reference reference;
  run_ranks(kRanks, [&](Communicator& comm) {
    const auto runtime = start(comm, {.dispatcher = "all_to_all", .weights = {.left = Left::kSum}});
    const Batch batch(5 + comm.rank(), 30 + static_cast<unsigned>(comm.rank()));
    std::vector<float> out;
    runtime->forward(0, batch.into(out), true);
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    EXPECT_EQ(out, reference(batch));
  });
  EXPECT_THROW(run_ranks(kRanks,
                         [&](Communicator& comm) {
                           start(comm, {.balancer = "{}", .weights = {.left = Left::kSum}});
                         }),
               InvalidArgument);
}

}  // namespace
}  // namespace trimtab::python
