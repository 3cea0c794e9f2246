// SPDX-License-Identifier: Apache-2.0
// The whole experts stage of one rank: rows sorted by expert, the experts, the weighted sum back to
// the tokens.
#pragma once

#include <cstdint>
#include <memory>

#include "bench/experts/expert_set.h"
#include "bench/experts/model_shape.h"
#include "bench/experts/routing.h"
#include "bench/experts/weight_dtype.h"
#include "trimtab/communicator.h"
#include "trimtab/dispatcher.h"
#include "trimtab/workspace.h"

namespace trimtab::bench {

// Slot s of the model holds expert s % set.size(): a set is as large as it must be to be cold.
std::unique_ptr<Experts> make_experts(const ModelShape& model, const WeightDType& dtype,
                                      const ExpertSet& set);

class ExpertStage {
 public:
  // comm: of one rank.
  ExpertStage(const ModelShape& model, std::unique_ptr<Experts> experts, int64_t max_tokens,
              Communicator& comm, Team& team);
  // x, out: [tokens, hidden] in the type of the rows, in f32.
  void run(ConstRows x, const Picks& picks, Rows out);
  // Of the last run: what was spent on sorting the rows and on summing them up, as a part of the
  // whole.
  double moving_share() const { return moving_share_; }

 private:
  int top_k_;
  std::unique_ptr<Experts> experts_;
  std::unique_ptr<Dispatcher> dispatcher_;
  Workspace workspace_;
  Buffer y_, scratch_;
  Lane lane_;
  double moving_share_ = 0;
};

}  // namespace trimtab::bench
