// SPDX-License-Identifier: Apache-2.0
// One rank's part of a pass through the experts of a layer.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "trimtab/communicator.h"
#include "trimtab/dispatcher.h"
#include "trimtab/layer.h"
#include "trimtab/layout.h"
#include "trimtab/team.h"
#include "trimtab/workspace.h"

namespace trimtab::python {

// Tokens with the experts that their router chose.
struct RoutedTokens {
  ConstRows x;                     // [tokens, hidden] f32 or bf16
  ConstRows ids;                   // I64 or I32 [tokens, top_k], contiguous; below 0, and from
                                   // num_experts on: nobody
  std::span<const float> weights;  // [tokens, top_k]
  Rows out;                        // [tokens, hidden] f32 or bf16, apart from x

  RoutedTokens slice(int64_t first, int64_t count) const {
    return {x.slice(first, count), ids.slice(first, count),
            weights.subspan(first * ids.cols, count * ids.cols), out.slice(first, count)};
  }
};

// Where a layer's router weights go.
struct WeightUse {
  bool on_input = false;            // MoeLayer::Parts::weight_on_input
  Left left = Left::kWeightAndSum;  // who weighs and sums the experts' outputs
};

// A layer as one rank has it.
struct RankLayer {
  MoeLayer layer;
  std::vector<int32_t> counts;    // [slots of this rank] rows of the last pass
  std::vector<int64_t> received;  // [slots of this rank] rows by now
  int64_t nanoseconds = 0;        // that the experts took in the last pass
};

// What a rank has for all of its passes.
struct RankState {
  // Collective over end, whose ranks have the same layout. The dispatcher is made for the ranks
  // that hold the layout's experts.
  RankState(std::unique_ptr<Communicator> end, const ParallelLayout& layout,
            const Dispatcher& dispatcher, size_t workspace_bytes, int threads);

  std::unique_ptr<Communicator> comm;
  LayoutGroups layout_groups;
  std::vector<std::unique_ptr<Communicator>> owned_groups;  // the dispatcher's
  std::vector<Communicator*> groups;
  Workspace workspace;
  Team team;  // its helpers are visitors
  Lane lane;
  std::exception_ptr error;  // of the last pass

 private:
  Communicator& experts_comm() const {
    return layout_groups.experts ? *layout_groups.experts : *comm;
  }
};

// Says what becomes of the output of a pass. It is kDropped on a rank whose output another one has
// too, and which would write it to the same place.
enum class Output { kWritten, kDropped };

// Workspace of a pass with at most so many tokens of this rank.
size_t pass_bytes(const MoeLayer& layer, int64_t max_tokens, Output output = Output::kWritten);

// Takes this rank's tokens through the layer. Every rank of the group does so at the same time. An
// exception fails the group and is left in state.error.
void run_pass(RankLayer& layer, const RoutedTokens& tokens, RankState& state,
              Output output = Output::kWritten) noexcept;

}  // namespace trimtab::python
