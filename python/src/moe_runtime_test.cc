// SPDX-License-Identifier: Apache-2.0
// What the sanitizers are to see of the runtime; its results are compared in python/tests.
#include "moe_runtime.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime_testing.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

constexpr int kExperts = 5;

std::unique_ptr<MoeRuntime> make_runtime(const RuntimeOptions& options) {
  const auto table = make_table(kExperts, 0, kExperts, options.threads);
  auto runtime = std::make_unique<MoeRuntime>(*table, kTopK, options);
  runtime->add_layer(table);
  return runtime;
}

template <class Id = int64_t>
std::vector<float> forward(
    MoeRuntime& runtime, int64_t tokens, const std::function<void()>& between = [] {}) {
  const auto x = random_floats(tokens * kHidden, 3);
  const auto weights = random_floats(tokens * kTopK, 4);
  std::vector<Id> ids(static_cast<size_t>(tokens * kTopK));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<Id>(i * 7 % kExperts);
    // Nobody's: numbers that no expert has.
    if (i % 11 == 5) ids[i] = i % 2 == 0 ? static_cast<Id>(-3) : std::numeric_limits<Id>::max();
  }
  std::vector<float> out(x.size());
  runtime.forward(0,
                  {ConstRows(x.data(), tokens, kHidden), ConstRows(ids.data(), tokens, kTopK),
                   weights, Rows(out.data(), tokens, kHidden)},
                  between);
  return out;
}

TEST(MoeRuntime, BitsDoNotDependOnRanksAndThreads) {
  const auto wanted = forward(*make_runtime({}), 23);
  for (const int ranks : {1, 2, 3}) {
    for (const int threads : {1, 2}) {
      const auto runtime = make_runtime({.ranks = ranks, .threads = threads, .max_tokens = 10});
      for (int round = 0; round < 5; ++round)
        EXPECT_EQ(forward(*runtime, 23), wanted) << ranks << " x " << threads;
    }
  }
}

TEST(MoeRuntime, ExpertsMayWeighAndSumThemselves) {
  const auto wanted = forward(*make_runtime({}), 23);
  for (const int ranks : {1, 3}) {
    for (const Left left : {Left::kWeightAndSum, Left::kSum, Left::kNothing}) {
      const auto with = [&](const char* dispatcher) {
        return make_runtime({.ranks = ranks,
                             .dispatcher = dispatcher,
                             .max_tokens = 10,
                             .weights = {.left = left}});
      };
      if (left == Left::kNothing) {
        EXPECT_THROW(with("pull"), InvalidArgument);
      } else {
        EXPECT_EQ(forward(*with("pull"), 23), wanted);
      }
      EXPECT_EQ(
          forward(*with("all_gather"), 23),
          forward(*make_runtime({.ranks = ranks, .dispatcher = "all_gather", .max_tokens = 10}),
                  23));
    }
  }
}

TEST(MoeRuntime, WeightsMayMultiplyTheInput) {
  const auto table = make_table(kExperts, 0, kExperts);
  constexpr int64_t kTokens = 9;
  const auto weights = random_floats(kTokens, 4);
  std::vector<float> x = random_floats(kTokens * kHidden, 3), weighed = x;
  for (size_t i = 0; i < x.size(); ++i) weighed[i] *= weights[i / kHidden];
  const std::vector<int32_t> ids{0, 3, 2, 4, -1, 1, 1, 0, 2};
  const auto output = [&](const std::vector<float>& rows, const std::vector<float>& of_picks,
                          bool on_input, int ranks) {
    MoeRuntime runtime(*table, 1, {.ranks = ranks, .weights = {.on_input = on_input}});
    runtime.add_layer(table);
    std::vector<float> out(rows.size());
    runtime.forward(0,
                    {ConstRows(rows.data(), kTokens, kHidden), ConstRows(ids.data(), kTokens, 1),
                     of_picks, Rows(out.data(), kTokens, kHidden)},
                    [] {});
    return out;
  };
  const auto wanted = output(weighed, std::vector<float>(kTokens, 1.0F), false, 1);
  for (const int ranks : {1, 3}) EXPECT_EQ(output(x, weights, true, ranks), wanted);
  EXPECT_NE(output(x, weights, false, 1), wanted);
  // With several picks a token would need several inputs.
  EXPECT_THROW(make_runtime({.weights = {.on_input = true}}), InvalidArgument);
}

// P1, P4: whole experts and slices of tokens have the bits of one rank; where ranks sum parts,
// outputs differ by rounding. Each pick is counted once.
TEST(MoeRuntime, LayoutsGiveWhatOneRankGives) {
  const auto alone = make_runtime({.max_tokens = 10});
  const auto wanted = forward(*alone, 23);
  for (const ParallelLayout layout : {ParallelLayout{.tp = 2},
                                      {.tp = 2, .pcp = 2},
                                      {.tp = 3, .sp = false},
                                      {.tp = 2, .ep = false},
                                      {.tp = 2, .ep = false, .pcp = 2},
                                      {.ep = false, .pcp = 3}}) {
    SCOPED_TRACE(name(layout));
    const auto table = make_table(kExperts, 0, kExperts, 2, {.parts = layout.expert_parts()});
    EXPECT_EQ(table->intermediate(), kIntermediate);
    MoeRuntime runtime(*table, kTopK,
                       {.ranks = layout.ranks(), .threads = 2, .layout = layout, .max_tokens = 10});
    runtime.add_layer(table);
    for (const int64_t tokens : {0, 1, 23}) {
      const auto out = forward(runtime, tokens), one = forward(*alone, tokens);
      for (size_t i = 0; i < out.size(); ++i) {
        if (layout.sums_parts()) {
          ASSERT_NEAR(out[i], one[i], 1e-4 * std::abs(one[i]) + 1e-3) << i;
        } else {
          ASSERT_EQ(out[i], one[i]) << i;
        }
      }
    }
    std::vector<int64_t> load = runtime.load();
    alone->reset_load();
    for (const int64_t tokens : {0, 1, 23}) forward(*alone, tokens);
    EXPECT_EQ(load, alone->load());
  }
}

// M12: in rounds, where one rank gets all rows.
TEST(MoeRuntime, RowBudgetsKeepTheBits) {
  const auto wanted = forward(*make_runtime({}), 23);
  const auto roomy = make_runtime({.ranks = 4, .row_budget = 0});
  EXPECT_EQ(forward(*roomy, 23), wanted);
  EXPECT_EQ(roomy->row_budget(), 0);
  const auto tight = make_runtime({.ranks = 4, .row_budget = 1});
  tight->place(0, std::vector<int32_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4});
  EXPECT_EQ(forward(*tight, 23), wanted);
  EXPECT_EQ(tight->row_budget(), 2048 / 4 * kTopK);
  EXPECT_EQ(2 * make_runtime({.ranks = 4})->row_budget(), 3 * tight->row_budget());
  EXPECT_LT(tight->workspace_bytes(), roomy->workspace_bytes());
}

// What the constructor or add_layer() says.
std::string refusal(const RuntimeOptions& options, ExpertParts parts = {}) {
  try {
    const auto table = make_table(kExperts, 0, kExperts, 1, parts);
    MoeRuntime(*table, kTopK, options).add_layer(table);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(MoeRuntimeErrors, LayoutsAndBudgetsThatMeanNothingAreRefused) {
  const auto says = [](const std::string& text, const char* words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  says(refusal({.ranks = 4, .layout = ParallelLayout{.tp = 2, .dp = 2}}), "take dp 1");
  says(refusal({.ranks = 3, .layout = ParallelLayout{.tp = 2}}), "are not 3 ranks");
  const ParallelLayout parts{.tp = 2, .ep = false}, all_tokens{.tp = 2, .sp = false};
  says(refusal({.ranks = 2, .layout = parts}), "it takes all 2 parts");
  says(refusal({.ranks = 2, .layout = parts}, {.parts = 2, .part = 1}), "the weights have one");
  says(refusal({.ranks = 2}, {.parts = 2}), "it takes all 1 parts");
  says(refusal({.ranks = 2, .layout = parts, .dispatcher = "pull"}, {.parts = 2}),
       "takes dispatcher auto, not pull");
  says(refusal({.ranks = 2, .layout = parts, .row_budget = 2}, {.parts = 2}), "row budget");
  says(refusal({.ranks = 2, .layout = all_tokens, .row_budget = 2}), "row budget");
  says(refusal({.ranks = 2, .dispatcher = "pull_batched", .row_budget = 2}),
       "pull_batched takes no row budget, not 2; all_gather, ");
  says(refusal({.ranks = 2, .dispatcher = "grouped", .row_budget = 2}), "no whole outputs");
  says(refusal({.ranks = 2, .row_budget = -1}), "-1 times the level load");
  says(refusal({}, {.parts = 3}), "expert 0: an expert of intermediate size 128");
  says(refusal({}, {.parts = 2, .part = 2}), "part 2 of 2");
  EXPECT_EQ(refusal({.ranks = 2, .layout = parts, .row_budget = 0}, {.parts = 2}), "");
}

TEST(MoeRuntimeErrors, PlacementsThatALayoutCannotHaveAreRefused) {
  const std::vector<int32_t> once = {4, 3, 2, 1, 0}, twice = {0, 1, 2, 3, 4, 0, 1, 2, 3, 4};
  const auto all_tokens =
      make_runtime({.ranks = 5, .layout = ParallelLayout{.tp = 5, .sp = false}});
  const auto wanted = forward(*all_tokens, 9);
  EXPECT_THROW(all_tokens->place(0, twice), InvalidArgument);
  all_tokens->place(0, once);
  const auto moved = forward(*all_tokens, 9);
  for (size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(moved[i], wanted[i], 1e-3) << i;
  const ParallelLayout parts{.tp = 2, .ep = false};
  const auto table = make_table(kExperts, 0, kExperts, 1, {.parts = 2});
  MoeRuntime runtime(*table, kTopK, {.ranks = 2, .layout = parts});
  runtime.add_layer(table);
  runtime.place(0, twice);  // as it is: a part of each on either rank
  const std::vector<int32_t> other = {1, 0, 2, 3, 4, 0, 1, 2, 3, 4};
  EXPECT_THROW(runtime.place(0, other), InvalidArgument);
}

TEST(MoeRuntime, IdsMayHaveEitherWidth) {
  const auto runtime = make_runtime({.ranks = 2, .max_tokens = 10});
  const auto wanted = forward(*runtime, 23);
  const auto load = runtime->load();
  EXPECT_EQ(forward<int32_t>(*runtime, 23), wanted);
  for (int e = 0; e < kExperts; ++e) EXPECT_EQ(runtime->load()[e], 2 * load[e]) << e;
}

TEST(MoeRuntime, Bf16IsRoundedOnceFromTheSum) {
  const auto runtime = make_runtime({.ranks = 2, .threads = 2, .max_tokens = 10});
  constexpr int64_t kTokens = 23;
  std::vector<bf16_t> x, rounded(kTokens * kHidden);
  std::vector<float> wide, exact(rounded.size());
  for (const float value : random_floats(kTokens * kHidden, 3)) {
    x.push_back(to_bf16(value));
    wide.push_back(to_float(x.back()));
  }
  const auto weights = random_floats(kTokens * kTopK, 4);
  std::vector<int32_t> ids(weights.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 3 % kExperts);
  const auto call = [&](ConstRows rows, Rows out) {
    runtime->forward(0, {rows, ConstRows(ids.data(), kTokens, kTopK), weights, out}, [] {});
  };
  call(ConstRows(wide.data(), kTokens, kHidden), Rows(exact.data(), kTokens, kHidden));
  call(ConstRows(x.data(), kTokens, kHidden), Rows(rounded.data(), kTokens, kHidden));
  for (size_t i = 0; i < exact.size(); ++i)
    ASSERT_EQ(rounded[i].bits, to_bf16(exact[i]).bits) << "element " << i;
}

TEST(MoeRuntime, CallsOfSeveralThreadsRunOneAfterAnother) {
  const auto runtime = make_runtime({.ranks = 2, .threads = 2, .max_tokens = 6});
  const auto wanted = forward(*runtime, 11);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (int round = 0; round < 10; ++round) EXPECT_EQ(forward(*runtime, 11), wanted);
      });
    }
    const std::vector<int32_t> reversed = {4, 3, 2, 1, 0, 0};
    for (int round = 0; round < 10; ++round) {
      runtime->place(0, round % 2 == 0 ? reversed : std::vector<int32_t>{});
      EXPECT_EQ(std::ssize(runtime->load()), kExperts);
    }
  }
  int64_t sum = 0;
  for (const int64_t tokens : runtime->load()) sum += tokens;
  EXPECT_EQ(sum, 31 * (11 * kTopK - 2));  // two picks of nobody
}

TEST(MoeRuntime, GoesOnAfterACallThatWasBrokenOff) {
  const auto runtime = make_runtime({.ranks = 2, .max_tokens = 4});
  const auto wanted = forward(*runtime, 9);
  EXPECT_THROW(forward(*runtime, 9, [] { throw std::domain_error("enough"); }), std::domain_error);
  EXPECT_EQ(forward(*runtime, 9), wanted);
}

TEST(MoeRuntimeErrors, OutMustBeApartFromWhatIsRead) {
  const auto runtime = make_runtime({.ranks = 2, .threads = 1});
  constexpr int64_t kTokens = 4;
  std::vector<float> memory(3 * kTokens * kHidden, 0.5F);
  std::vector<int64_t> own_ids(kTokens * kTopK);
  const std::vector<float> own_weights(kTokens * kTopK, 0.5F);
  const auto call = [&](int64_t x_at, int64_t out_at, std::span<const int64_t> ids,
                        std::span<const float> weights) {
    runtime->forward(
        0,
        {ConstRows(memory.data() + x_at, kTokens, kHidden), ConstRows(ids.data(), kTokens, kTopK),
         weights, Rows(memory.data() + out_at, kTokens, kHidden)},
        [] {});
  };
  const int64_t size = kTokens * kHidden;
  EXPECT_NO_THROW(call(0, size, own_ids, own_weights));
  EXPECT_THROW(call(0, 0, own_ids, own_weights), InvalidArgument);
  EXPECT_THROW(call(0, size - 1, own_ids, own_weights), InvalidArgument);
  EXPECT_THROW(call(kHidden, 0, own_ids, own_weights), InvalidArgument);
  const std::span<const float> weights(memory.data() + size, own_weights.size());
  EXPECT_THROW(call(0, size, own_ids, weights), InvalidArgument);
  const std::span<const int64_t> ids(reinterpret_cast<const int64_t*>(memory.data() + size),
                                     own_ids.size());
  EXPECT_THROW(call(0, size, ids, own_weights), InvalidArgument);
  EXPECT_NO_THROW(call(0, 2 * size, own_ids, own_weights));
}

// A process packs its own part alone, which is the one that a table of all parts has.
TEST(ExpertTable, HoldsThePartsThatAreWanted) {
  const auto all = make_table(kExperts, 0, kExperts, 2, {.parts = 2});
  const auto one = make_table(kExperts, 0, kExperts, 1, {.parts = 2, .part = 1});
  EXPECT_EQ(all->bytes(), 2 * one->bytes());
  for (int e = 0; e < kExperts; ++e) {
    const Mlp &mine = *one->experts(1)[e], &same = *all->experts(1)[e];
    EXPECT_EQ(mine.intermediate(), kIntermediate / 2);
    const Buffer &panels = mine.down_packed().panels, &wanted = same.down_packed().panels;
    ASSERT_EQ(panels.bytes(), wanted.bytes());
    EXPECT_EQ(std::memcmp(panels.data(), wanted.data(), panels.bytes()), 0) << "expert " << e;
  }
  EXPECT_THROW(one->experts(0), InvalidArgument);
  EXPECT_THROW(all->experts(2), InvalidArgument);
}

TEST(ExpertTableErrors, TheExpertAndTheWeightAreNamed) {
  auto gate_up = random_floats(kExperts * 2 * kIntermediate * kHidden, 1);
  const auto down = random_floats(kExperts * kHidden * kIntermediate, 2);
  gate_up[(3 * 2 * kIntermediate + kIntermediate + 2) * kHidden + 5] = std::nanf("");
  for (const int threads : {1, 3}) {
    try {
      ExpertTable(arrays_of(gate_up, down, 0, kExperts), Activation{}, Scheme::kW8A8, threads);
      ADD_FAILURE() << "a NaN was packed";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()), "expert 3: the up weight: weight 5 of row 2 is nan");
    }
  }
}

}  // namespace
}  // namespace trimtab::python
