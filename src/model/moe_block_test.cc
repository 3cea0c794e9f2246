// SPDX-License-Identifier: Apache-2.0
// Every fixture's MoE blocks, loaded into a MoeLayer and run over several ranks, against what
// transformers computed for them: the weights of each family reach the kernels in the form that
// they expect.
#include <gtest/gtest.h>

#include <cmath>

#include "base/cat.h"
#include "model/checkpoint_testing.h"
#include "model/decoder_testing.h"
#include "trimtab/checkpoint.h"
#include "trimtab/communicator.h"
#include "trimtab/layer.h"
#include "trimtab/placement.h"

namespace trimtab {
namespace {

// Of an element's error, relative to its row's norm. f32: sums of a few dozen terms in another
// order. bf16: the two stages of an expert (gate and up, then down) round their weights and their
// input, 2^-9 each; the roundings are independent, so what the stages add to the error, 2 * 2^-9 of
// the row's norm each, adds up as squares.
double tolerance(DType dtype) {
  return dtype == DType::kF32 ? 1e-4 : 2 * 0x1p-9 * std::sqrt(2.0);
}

// One layer's block, packed once and shared by all ranks.
class Block {
 public:
  Block(const SafeTensors& tensors, const ModelConfig& config, int layer, DType dtype)
      : hidden_(config.hidden_size), layer_(layer), dtype_(dtype) {
    const MoeTensors found = find_moe_tensors(tensors, config, layer);
    gate_ = std::make_shared<const Linear>(found.gate, found.gate_bias, DType::kF32);
    router_ = std::make_shared<const Router>(router_config(config, found));
    for (const MlpSource& expert : found.experts) {
      experts_.push_back(std::make_shared<const Mlp>(expert, config.activation, dtype));
    }
    if (!found.shared) return;
    std::shared_ptr<const Linear> shared_gate;
    if (found.shared_gate)
      shared_gate = std::make_shared<const Linear>(*found.shared_gate, VectorSource{}, DType::kF32);
    shared_.emplace(std::make_shared<const Mlp>(*found.shared, config.activation, dtype),
                    shared_gate);
  }

  // Runs the rows of x over so many ranks. The first of several ranks has experts but no tokens.
  std::vector<float> run_over(int ranks, const std::string& dispatcher,
                              const std::vector<float>& x) const {
    const auto tokens = static_cast<int64_t>(x.size()) / hidden_;
    const Placement placement = Placement::linear(1, static_cast<int>(experts_.size()), ranks);
    std::vector<float> out(x.size(), std::nanf(""));
    run_ranks(ranks, [&](Communicator& comm) {
      const int r = comm.rank();
      const MoeLayer layer = on_rank(placement, r, dispatcher, tokens);
      Workspace workspace(layer.workspace_bytes(tokens));
      Team team(1);
      Lane lane{comm, workspace, team};
      const int64_t first = r == 0 ? 0 : tokens * (r - 1) / (ranks - 1);
      const int64_t last = ranks == 1 ? tokens : r == 0 ? 0 : tokens * r / (ranks - 1);
      run(layer.forward(ConstRows(x.data(), tokens, hidden_).slice(first, last - first),
                        Rows(out.data(), tokens, hidden_).slice(first, last - first), lane));
    });
    return out;
  }

 private:
  MoeLayer on_rank(const Placement& placement, int rank, const std::string& dispatcher,
                   int64_t max_tokens) const {
    std::vector<std::shared_ptr<const Mlp>> slots;
    for (int slot = placement.first_slot(rank); slot < placement.first_slot(rank + 1); ++slot) {
      slots.push_back(experts_[static_cast<size_t>(placement.logical(0)[slot])]);
    }
    return MoeLayer({.gate = gate_,
                     .router = router_,
                     .replicas = std::make_shared<const SplitTable>(placement, 0),
                     .dispatcher = make_dispatcher(dispatcher,
                                                   {.max_tokens = max_tokens,
                                                    .hidden = hidden_,
                                                    .top_k = router_->picks_per_token(),
                                                    .dtype = dtype_,
                                                    .first_slots = placement.first_slots()},
                                                   rank),
                     .experts = make_grouped_experts(std::move(slots), hidden_, dtype_),
                     .shared = shared_,
                     .layer = layer_});
  }

  int hidden_, layer_;
  DType dtype_;
  std::shared_ptr<const Linear> gate_;
  std::shared_ptr<const Router> router_;
  std::vector<std::shared_ptr<const Mlp>> experts_;
  std::optional<SharedExperts> shared_;
};

class MoeBlockOf : public FixtureTest {
 protected:
  void run_and_compare(DType dtype) const {
    int blocks = 0;
    for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
      if (!config.is_moe_layer[layer]) continue;
      ++blocks;
      const Block block(tensors, config, layer, dtype);
      const auto x = values<float>(expected.at(cat("layers.", layer, ".moe.input")));
      const auto wanted = values<float>(expected.at(cat("layers.", layer, ".moe.output")));
      const auto alone = block.run_over(1, "pull", x);
      for (const char* dispatcher : {"pull", "all_gather"}) {
        for (const int ranks : {1, 2, 3, 4, 7}) {
          SCOPED_TRACE(cat("layer ", layer, ", ", dispatcher, ", ", ranks, " ranks"));
          const auto out = block.run_over(ranks, dispatcher, x);
          EXPECT_LE(relative_error(out, wanted, config.hidden_size), tolerance(dtype));
          if (dispatcher == std::string("pull")) {
            EXPECT_EQ(out, alone);
          }
        }
      }
    }
    EXPECT_GT(blocks, 0);
  }
};

TEST_P(MoeBlockOf, InF32) {
  run_and_compare(DType::kF32);
}

TEST_P(MoeBlockOf, InBf16) {
  run_and_compare(DType::kBF16);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, MoeBlockOf, testing::ValuesIn(fixture_checkpoints()),
                         FixtureTest::name);

}  // namespace
}  // namespace trimtab
