// SPDX-License-Identifier: Apache-2.0
#include "dispatch/rounds.h"

#include <algorithm>

#include "dispatch/slice_of_request.h"
#include "trimtab/error.h"

namespace trimtab {

Rounds::Rounds(const RoundMaker& maker, const RankShape& shape, const Request& request, Lane& lane,
               std::byte* memory)
    : maker_(maker),
      shape_(shape),
      request_(request),
      lane_(lane),
      inner_lane_{lane.comm, lane.workspace, lane.team, lane.groups, lane.trace},
      memory_(memory) {
  begin();
  lane_.has_exchange = true;
}

Rounds::~Rounds() {
  end();
  lane_.has_exchange = false;
}

void Rounds::finish(Rows out) {
  shape_.check_out(out, request_.x);
  round().finish(out.slice(first(), count()));
}

StagedExchange& Rounds::round() const {
  if (round_ == nullptr) throw InvalidArgument("exchange: the round before failed");
  return *round_;
}

bool Rounds::advance(Stage stage, bool block) {
  if (stage == Stage::kArrived && drained_ && more()) {
    ++part_;
    begin();
  }
  while (reached(round(), stage, block)) {
    if (stage == Stage::kDrained) drained_ = true;
    if (stage != Stage::kArrived || round().overflow() == 0) return true;
    cut(round().overflow());
    begin();
  }
  return false;
}

void Rounds::begin() {
  end();
  drained_ = false;
  round_ = maker_.make_round(slice_of_request(request_, first(), count()), inner_lane_, memory_);
}

void Rounds::end() {
  if (round_ != nullptr) round_->~StagedExchange();
  round_ = nullptr;
}

// So fine that parts fit if rows are spread evenly over a rank's tokens, of which a part may have
// one more than another. Parts of at most one token fit anyhow, so there are never more than twice
// max_tokens.
void Rounds::cut(int64_t most_rows) {
  const int64_t fit =
      std::max(shape_.row_budget / 2, shape_.row_budget - int64_t{shape_.ranks} * shape_.top_k);
  const auto quotient = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t finer = std::min(quotient(most_rows, fit), quotient(shape_.max_tokens, parts_));
  part_ *= finer;
  parts_ *= finer;
}

}  // namespace trimtab
