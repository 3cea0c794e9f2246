// SPDX-License-Identifier: Apache-2.0
// The forms of a call: rows in bf16 or f32, routed by the layer or by its caller, outputs in bf16
// or f32, summed or apart. All of them are one computation, so each must give the bits of the plain
// one, rounded where bf16 was asked for.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/test_effort.h"
#include "comm/testing.h"
#include "layer/large_layer_testing.h"
#include "trimtab/batches.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using namespace large_layer;

// Tokens of rank 1: none.
int64_t tokens_of(int rank) {
  return rank == 1 ? 0 : kMaxTokens - rank;
}

// Rows of one rank as floats, whose type is that of the call.
struct Values {
  Values(int64_t rows, DType type)
      : dtype(type), tokens(rows), wide(rows * kHidden), bits(wide.size()) {}
  Rows rows() {
    return dtype == DType::kF32 ? Rows(wide.data(), tokens, kHidden)
                                : Rows(bits.data(), tokens, kHidden);
  }
  DType dtype;
  int64_t tokens;
  std::vector<float> wide;
  std::vector<bf16_t> bits;
};

// Values that bf16 holds, so that rows of both types are the same rows.
Values input(int64_t tokens, DType dtype, uint64_t seed) {
  Values x(tokens, dtype);
  const std::vector<float> random = random_floats(x.wide.size(), seed, 1.0F);
  for (size_t i = 0; i < random.size(); ++i) {
    x.bits[i] = to_bf16(random[i]);
    x.wide[i] = to_float(x.bits[i]);
  }
  return x;
}

void expect_values(const Values& found, const std::vector<float>& wanted, const std::string& what) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (found.dtype == DType::kF32) {
      ASSERT_EQ(found.wide[i], wanted[i]) << what << ", element " << i;
    } else {
      ASSERT_EQ(found.bits[i].bits, to_bf16(wanted[i]).bits) << what << ", element " << i;
    }
  }
}

// What a caller's router finds.
struct Picks {
  Picks(const Model& model, const std::vector<float>& x)
      : tokens(std::ssize(x) / kHidden), ids(tokens * kTopK), weights(ids.size()) {
    std::vector<float> logits(tokens * kExperts);
    Team team(1);
    model.gate->run(ConstRows(x.data(), tokens, kHidden), Rows(logits.data(), tokens, kExperts),
                    team);
    model.router->route(ConstRows(logits.data(), tokens, kExperts), {}, {ids, weights});
  }
  int64_t tokens;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

std::string name_of(const CallForm& form) {
  return std::string(name(form.x)) + " -> " + std::string(name(form.out)) +
         (form.routed ? ", routed" : "") + (form.apart ? ", apart" : "");
}

std::vector<CallForm> all_forms() {
  std::vector<CallForm> forms;
  for (const DType x : {DType::kF32, DType::kBF16}) {
    for (const DType out : {DType::kF32, DType::kBF16}) {
      for (const bool routed : {false, true}) {
        for (const bool apart : {false, true}) forms.push_back({x, out, routed, apart});
      }
    }
  }
  return forms;
}

struct Way {
  const char* dispatcher;
  WeightFormat format;
  SplitRule split = SplitRule::kStatic;
  DType sent = DType::kF32;  // F32: as the format takes rows
};
const Way kWays[] = {{"pull", Scheme::kBF16},
                     {"pull", Scheme::kF32, SplitRule::kSplit},
                     {"pull", Scheme::kW8A8},
                     {"fused", Scheme::kBF16, SplitRule::kSplit},
                     {"all_to_all", Scheme::kW8A8, SplitRule::kStatic, DType::kI8},
                     {"all_to_all", Scheme::kBF16, SplitRule::kRoundRobin},
                     {"all_gather", Scheme::kBF16},
                     {"mc2", Scheme::kF32},
                     {"packed", Scheme::kBF16}};

using Parameters = std::tuple<int, int>;  // a way, ranks
class CallForms : public testing::TestWithParam<Parameters> {
 protected:
  void SetUp() override { TRIMTAB_SAMPLED_UNDER_SANITIZERS(3); }
  const Way& way() const { return kWays[std::get<0>(GetParam())]; }
  int ranks() const { return std::get<1>(GetParam()); }

  // Every rank holds expert 0.
  Placement placement() const {
    std::vector<int32_t> slots;
    std::vector<int> counts;
    for (int r = 0; r < ranks(); ++r) {
      slots.push_back(0);
      for (int e = 1 + r; e < kExperts; e += ranks()) slots.push_back(e);
      counts.push_back(static_cast<int>(std::ssize(slots)));
    }
    for (int r = ranks() - 1; r > 0; --r) counts[r] -= counts[r - 1];
    return {1, kExperts, counts, slots};
  }
  MoeLayer::Parts parts(const Model& model, Communicator& comm) const {
    const Placement slots = placement();
    DispatchShape shape{kMaxTokens, kHidden, kTopK, model.format.rows(), slots.first_slots()};
    if (way().sent != DType::kF32) shape.dtype = way().sent;
    if (way().split != SplitRule::kStatic) shape.num_experts = kExperts;
    MoeLayer::Parts made = model.parts(slots, comm, way().split,
                                       make_dispatcher(way().dispatcher, shape, comm.rank()));
    made.shared = model.shared;
    made.layer = 3;
    return made;
  }
};
INSTANTIATE_TEST_SUITE_P(All, CallForms,
                         testing::Combine(testing::Range(0, static_cast<int>(std::size(kWays))),
                                          testing::ValuesIn(rank_counts({1, 2, 3}))),
                         [](const auto& param) {
                           const Way& way = kWays[std::get<0>(param.param)];
                           return std::string(way.dispatcher) + "_" + name(way.format) + "_" +
                                  std::to_string(std::get<0>(param.param)) + "_" +
                                  std::to_string(std::get<1>(param.param));
                         });

// S4: routed and shared outputs come summed, or apart for a caller that sums them.
TEST_P(CallForms, AllGiveTheBitsOfThePlainOne) {
  const Model model(way().format);
  run_group(ranks(), [&](Communicator& comm) {
    const MoeLayer layer(parts(model, comm));
    MoeLayer::Parts without_gate = parts(model, comm);
    without_gate.gate = nullptr;
    without_gate.router = nullptr;
    const MoeLayer gateless(std::move(without_gate));
    EXPECT_EQ(gateless.picks_per_token(), kTopK);
    const int64_t tokens = tokens_of(comm.rank());
    const auto seed = 70 + static_cast<uint64_t>(comm.rank());
    Team team(2);
    const auto call = [&](const MoeLayer& to, const CallForm& form, Values& routed, Values& shared,
                          const Picks* picks, const ForwardOptions& options) {
      // Nothing but what this form takes.
      Workspace workspace(comm.allocate(to.workspace_bytes(tokens, form)));
      Lane lane{comm, workspace, team};
      Values x = input(tokens, form.x, seed);
      const LayerInput in =
          picks ? LayerInput(x.rows(), picks->ids, picks->weights) : LayerInput(x.rows());
      const LayerOutput out =
          form.apart ? LayerOutput(routed.rows(), shared.rows()) : LayerOutput(routed.rows());
      run(to.forward(in, out, lane, options));
      EXPECT_EQ(workspace.mark(), 0U);
    };

    const Values x = input(tokens, DType::kF32, seed);
    Values sum(tokens, DType::kF32), alone(tokens, DType::kF32), shared(tokens, DType::kF32);
    call(layer, {}, sum, shared, nullptr, {});
    call(layer, {.apart = true}, alone, shared, nullptr, {});
    for (size_t i = 0; i < sum.wide.size(); ++i)
      ASSERT_EQ(sum.wide[i], alone.wide[i] + shared.wide[i]) << "element " << i;

    const Picks picks(model, x.wide);
    for (const CallForm& form : all_forms()) {
      Values routed(tokens, form.out), of_shared(tokens, form.out);
      int captured = 0;
      const Capture capture = [&](int number, int64_t first, int top_k,
                                  std::span<const int32_t> ids) {
        ++captured;
        EXPECT_EQ(number, 3);
        EXPECT_EQ(first, 5);
        EXPECT_EQ(top_k, kTopK);
        EXPECT_EQ(std::vector(ids.begin(), ids.end()), picks.ids);
      };
      std::vector<int32_t> counts(placement().slots_of_rank(comm.rank())), twice(counts);
      const ForwardOptions options{.capture = &capture, .first_token = 5, .local_counts = counts};
      call(form.routed ? gateless : layer, form, routed, of_shared, form.routed ? &picks : nullptr,
           options);
      EXPECT_EQ(captured, 1);
      expect_values(routed, form.apart ? alone.wide : sum.wide, name_of(form));
      if (form.apart) expect_values(of_shared, shared.wide, name_of(form) + ", shared");
      // A layer with a router takes ids too.
      int64_t nanoseconds = -1'000'000'000'000;
      call(layer, form, routed, of_shared, &picks,
           {.local_counts = twice, .expert_nanoseconds = &nanoseconds});
      EXPECT_GT(nanoseconds, -1'000'000'000'000) << "is added to";
      EXPECT_LT(nanoseconds, 0);
      expect_values(routed, form.apart ? alone.wide : sum.wide, name_of(form) + ", with router");
      EXPECT_EQ(twice, counts);
    }
  });
}

// The plain form, and the two outputs apart, against the definition in double.
TEST_P(CallForms, EqualTheDefinition) {
  const Model model(way().format);
  const bool exact = way().format == WeightFormat(Scheme::kF32);
  const double bound = exact ? 1e-5 : way().format == WeightFormat(Scheme::kBF16) ? 2e-2 : 5e-2;
  run_group(ranks(), [&](Communicator& comm) {
    MoeLayer::Parts made = parts(model, comm);
    made.gate = nullptr;
    made.router = nullptr;
    const MoeLayer layer(std::move(made));
    const CallForm form{.routed = true, .apart = true};
    const int64_t tokens = tokens_of(comm.rank());
    Values x = input(tokens, DType::kF32, 90 + static_cast<uint64_t>(comm.rank()));
    Values routed(tokens, DType::kF32), shared(tokens, DType::kF32);
    const Picks picks(model, x.wide);
    Team team(1);
    Workspace workspace(comm.allocate(layer.workspace_bytes(tokens, form)));
    Lane lane{comm, workspace, team};
    run(layer.forward({x.rows(), picks.ids, picks.weights}, {routed.rows(), shared.rows()}, lane));
    for (int64_t t = 0; t < tokens; ++t) {
      const float* const row = x.wide.data() + t * kHidden;
      ASSERT_LE(distance(routed.wide.data() + t * kHidden, model.expected(row).data()), bound) << t;
      // Shared experts are in the type of the rows.
      ASSERT_LE(distance(shared.wide.data() + t * kHidden, model.expected_shared(row).data()),
                exact ? 1e-5 : 2e-2)
          << t;
    }
  });
}

// K7: the experts weigh their rows, or sum the picks of a token too: the same products and sums.
TEST_P(CallForms, ExpertsThatWeighOrSumGiveTheSameBits) {
  const Model model(way().format);
  run_group(ranks(), [&](Communicator& comm) {
    const auto parts_with = [&](Left left) {
      MoeLayer::Parts made = parts(model, comm);
      made.experts = make_grouped_experts(slots_of(placement(), comm.rank(), model.experts),
                                          kHidden, model.format, made.dispatcher->format(), left);
      return made;
    };
    const int64_t tokens = tokens_of(comm.rank());
    Values x = input(tokens, DType::kBF16, 40 + static_cast<uint64_t>(comm.rank()));
    Team team(2);
    const auto output = [&](Left left) {
      const MoeLayer layer(parts_with(left));
      Values out(tokens, DType::kF32);
      Workspace workspace(comm.allocate(layer.workspace_bytes(tokens, {.x = DType::kBF16})));
      Lane lane{comm, workspace, team};
      run(layer.forward(x.rows(), out.rows(), lane));
      return out.wide;
    };
    const std::vector<float> wanted = output(Left::kWeightAndSum);
    EXPECT_EQ(output(Left::kSum), wanted);
    if (dispatcher_kind(way().dispatcher).brings_tokens) {
      EXPECT_EQ(output(Left::kNothing), wanted);
    } else {
      EXPECT_THROW(MoeLayer{parts_with(Left::kNothing)}, InvalidArgument);
    }
  });
}

// Microbatches and chunks of rows that are routed already.
TEST_P(CallForms, HalvesAndChunksEqualTheWhole) {
  const Model model(way().format);
  run_group(ranks(), [&](Communicator& comm) {
    const MoeLayer layer(parts(model, comm));
    const auto other = comm.duplicate();
    const CallForm form{DType::kBF16, DType::kBF16, true, true};
    const int64_t tokens = tokens_of(comm.rank());
    Values x = input(tokens, DType::kBF16, 30 + static_cast<uint64_t>(comm.rank()));
    const Picks picks(model, x.wide);
    Team team(1);
    const size_t bytes = layer.workspace_bytes(kMaxTokens, form);
    Workspace memory(comm.allocate(bytes)), more(comm.allocate(bytes));
    Lane lane{comm, memory, team}, second{*other, more, team};
    const LayerInput in(x.rows(), picks.ids, picks.weights);
    const auto outputs = [&](const auto& body) {
      Values routed(tokens, DType::kBF16), shared(tokens, DType::kBF16);
      body(LayerOutput(routed.rows(), shared.rows()));
      std::vector<uint16_t> bits;
      for (const Values* values : {&routed, &shared}) {
        for (const bf16_t value : values->bits) bits.push_back(value.bits);
      }
      return bits;
    };
    const auto whole = outputs([&](const LayerOutput& out) { run(layer.forward(in, out, lane)); });
    EXPECT_EQ(outputs([&](const LayerOutput& out) {
                EXPECT_EQ(forward_overlapped(layer, in, out, lane, second, true), ranks() == 1);
              }),
              whole);
    EXPECT_EQ(outputs([&](const LayerOutput& out) { forward_in_chunks(layer, in, out, lane, 7); }),
              whole);
  });
}

// The reserve holds what a call takes, and little more: on one rank a full batch fills it but for
// the difference between the coroutine's frame and what is kept for it.
TEST(CallMemory, TheReserveIsWhatACallTakes) {
  const Model model(Scheme::kBF16);
  run_group(1, [&](Communicator& comm) {
    const Placement alone = Placement::linear(1, kExperts, 1);
    MoeLayer::Parts parts = model.parts(alone, comm, SplitRule::kStatic,
                                        model.dispatcher(alone, comm, "pull", SplitRule::kStatic));
    parts.shared = model.shared;
    const MoeLayer layer(std::move(parts));
    for (const CallForm& form : all_forms()) {
      Values x = input(kMaxTokens, form.x, 5), routed(kMaxTokens, form.out),
             shared(kMaxTokens, form.out);
      const Picks picks(model, x.wide);
      const size_t bytes = layer.workspace_bytes(kMaxTokens, form);
      Workspace workspace(comm.allocate(bytes));
      Team team(1);
      Lane lane{comm, workspace, team};
      const LayerInput in =
          form.routed ? LayerInput(x.rows(), picks.ids, picks.weights) : LayerInput(x.rows());
      run(layer.forward(
          in, form.apart ? LayerOutput(routed.rows(), shared.rows()) : LayerOutput(routed.rows()),
          lane));
      EXPECT_LE(workspace.peak(), bytes) << name_of(form);
      EXPECT_GE(workspace.peak() + 8192, bytes) << name_of(form);
    }
  });
}

void expect_refusal(const std::function<void()>& call, const std::vector<std::string>& words) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << words.front();
  } catch (const InvalidArgument& error) {
    for (const std::string& word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST(CallErrors, WhatDoesNotFitIsNamed) {
  const Model model(Scheme::kBF16);
  run_group(1, [&](Communicator& comm) {
    const Placement alone = Placement::linear(1, kExperts, 1);
    const auto parts = [&] {
      return model.parts(alone, comm, SplitRule::kStatic,
                         model.dispatcher(alone, comm, "pull", SplitRule::kStatic));
    };
    auto half = parts();
    half.router = nullptr;
    expect_refusal([&] { MoeLayer{std::move(half)}; }, {"a gate and a router come together"});
    auto gateless_parts = parts();
    gateless_parts.gate = nullptr;
    gateless_parts.router = nullptr;
    const MoeLayer layer(std::move(gateless_parts));
    Workspace workspace(comm.allocate(layer.workspace_bytes(4, {DType::kBF16, DType::kBF16})));
    Team team(1);
    Lane lane{comm, workspace, team};
    Values x = input(4, DType::kBF16, 1), out(4, DType::kBF16), other(4, DType::kF32);
    Picks picks(model, x.wide);
    const auto refused = [&](const LayerInput& in, const LayerOutput& to,
                             const std::vector<std::string>& words) {
      expect_refusal([&] { run(layer.forward(in, to, lane)); }, words);
    };
    const LayerInput fits(x.rows(), picks.ids, picks.weights);
    refused(x.rows(), out.rows(), {"no router", "ids and weights"});
    refused({x.rows(), std::span(picks.ids).first(7), picks.weights}, out.rows(),
            {"7 ids", "8 weights", "4 tokens of 2"});
    refused({x.rows(), picks.ids, picks.weights, std::span(picks.weights).first(3)}, out.rows(),
            {"3 weights of zero experts"});
    refused(fits, {out.rows(), other.rows()}, {"no shared experts"});
    refused(fits, other.rows().slice(0, 3), {"out is F32 [3, 256]", "[4, 256]"});
    refused(fits, x.rows(), {"overlap"});
    refused({x.rows(), picks.ids, std::span<const float>(other.wide).first(8)}, other.rows(),
            {"ids or weights and out overlap"});
    for (const int32_t wrong : {-2, kExperts}) {
      std::vector<int32_t> ids = picks.ids;
      ids[5] = wrong;
      refused({x.rows(), ids, picks.weights}, out.rows(),
              {"token 2, pick 1", "expert " + std::to_string(wrong)});
    }
    EXPECT_EQ(workspace.mark(), 0U);
    run(layer.forward(fits, out.rows(), lane));  // nothing was in the way
  });
}

}  // namespace
}  // namespace trimtab
