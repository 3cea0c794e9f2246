// SPDX-License-Identifier: Apache-2.0
// One rank's part of a pass through the experts of a layer: dispatch, experts, combine.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "trimtab/communicator.h"
#include "trimtab/dispatcher.h"
#include "trimtab/experts.h"
#include "trimtab/team.h"
#include "trimtab/workspace.h"

namespace trimtab::python {

// Tokens with the experts that their router chose.
struct RoutedTokens {
  ConstRows x;                     // [tokens, hidden] f32 or bf16
  std::span<const int64_t> ids;    // [tokens, top_k]; below 0, and from num_experts on: nobody
  std::span<const float> weights;  // [tokens, top_k]
  Rows out;                        // [tokens, hidden] f32 or bf16, apart from x
};

// A layer as one rank has it.
struct RankLayer {
  std::shared_ptr<const Dispatcher> dispatcher;
  std::shared_ptr<const Experts> experts;
  std::vector<int32_t> log2phy;   // [num_experts]
  std::vector<int64_t> received;  // [slots of this rank] rows by now
};

// What a rank has for all of its passes.
struct RankState {
  RankState(std::unique_ptr<Communicator> end, const Dispatcher& dispatcher, size_t workspace_bytes,
            int threads);

  std::unique_ptr<Communicator> comm;
  std::vector<std::unique_ptr<Communicator>> owned_groups;
  std::vector<Communicator*> groups;
  Workspace workspace;
  Team team;  // its helpers are visitors
  Lane lane;
  std::exception_ptr error;  // of the last pass
};

// Workspace of a pass with at most so many tokens of this rank.
size_t pass_bytes(const RankLayer& layer, int64_t max_tokens, int top_k);

// Takes this rank's share of the tokens, an even piece, through the layer. Every rank of the group
// does so at the same time. An exception fails the group and is left in state.error.
void run_pass(RankLayer& layer, const RoutedTokens& all, int top_k, RankState& state) noexcept;

}  // namespace trimtab::python
