// SPDX-License-Identifier: Apache-2.0
#include "dispatch/collective_exchange.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/cat.h"
#include "dispatch/pick_order.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {

CollectiveExchange::CollectiveExchange(const RankShape& shape, const Request& request, Lane& lane,
                                       const TermsMemory& memory)
    : StagedExchange(shape, request, lane),
      memory_(memory),
      own_(with_request(shape.terms, request)) {
  write_message();
  terms_ = comm_.all_gather_v(std::as_bytes(memory_.own), std::as_writable_bytes(memory_.all),
                              memory_.all_bytes);
}

void CollectiveExchange::write_message() {
  std::memcpy(memory_.own.data(), &own_, sizeof(Terms));
  std::ranges::fill(memory_.own.subspan(kTermsWords), 0);
  const std::span<int64_t> rows_for =
      memory_.own.subspan(kTermsWords, shape_.bounded() ? shape_.ranks : 0);
  if (counts_travel()) {
    const std::span<int64_t> words = memory_.own.subspan(kTermsWords + rows_for.size());
    count_picks(request_.ids, {reinterpret_cast<int32_t*>(words.data()),
                               static_cast<size_t>(shape_.num_experts)});
  }
  // Where those of logical experts go follows from the counts of all ranks.
  if (rows_for.empty() || request_.replicas.table != nullptr) return;
  for (const int32_t slot : request_.ids) {
    if (slot >= 0) ++rows_for[shape_.rank_of_slot(slot)];
  }
}

bool CollectiveExchange::come_to(Stage stage, bool block) {
  if (stage != Stage::kArrived)
    return go_to(stage, block) && (stage != Stage::kDrained || released(terms_, block));
  if (!agree(block)) return false;
  if (!over_budget() && !go_to(stage, block)) return false;
  return !over_budget() || end_together(block);
}

bool CollectiveExchange::agree(bool block) {
  if (progress_ == Progress::kGathering) {
    if (!done(terms_, block)) return false;
    compare();
    progress_ = Progress::kCompared;
  }
  if (other_ < 0) return true;
  try {
    if (!end_together(block)) return false;
    end_on_all_ranks();
  } catch (const CommError&) {  // the group has failed; what this rank knows says more
  }
  throw_difference(shape_.dispatcher_name, shape_.rank, own_, other_, theirs_);
}

void CollectiveExchange::compare() {
  std::span<const int64_t> messages = memory_.all;
  std::ranges::fill(memory_.rows_of_rank, 0);
  for (size_t r = 0; r < memory_.all_bytes.size(); ++r) {
    const auto message = messages.first(memory_.all_bytes[r] / sizeof(int64_t));
    messages = messages.subspan(message.size());
    theirs_ = {};
    if (std::ssize(message) >= kTermsWords)
      std::memcpy(static_cast<void*>(&theirs_), message.data(), sizeof(Terms));
    if (theirs_ != own_) {
      other_ = static_cast<int>(r);
      return;
    }
    std::ranges::transform(message.subspan(kTermsWords), memory_.rows_of_rank,
                           memory_.rows_of_rank.begin(), std::plus());
    if (counts_travel()) read_counts(r, message);
  }
  set_most_rows(std::ranges::max(memory_.rows_of_rank));
}

void CollectiveExchange::read_counts(size_t rank, std::span<const int64_t> message) {
  if (message.size() != memory_.own.size()) {  // broken on the way: the terms are equal
    throw InvalidArgument(cat(shape_.dispatcher_name, " dispatch: rank ", rank, " sent ",
                              message.size_bytes(), " bytes of terms and counts, expected ",
                              memory_.own.size_bytes()));
  }
  const Table counts(memory_.counts, shape_.num_experts);
  const std::span<int32_t> to = counts[static_cast<int64_t>(rank)];
  const auto before = kTermsWords + (shape_.bounded() ? shape_.ranks : 0);
  std::memcpy(to.data(), message.data() + before, to.size_bytes());
}

// Returns true when every rank has found what this one has, and nobody reads this rank's memory: no
// rank has to abort, and the group can go on.
bool CollectiveExchange::end_together(bool block) {
  if (progress_ == Progress::kCompared) {
    rest_ = start_the_rest();
    progress_ = Progress::kEnding;
  }
  // First all must know: ranks of different dispatchers fail the group when they go on.
  if (!released(terms_, block)) return false;
  while (progress_ == Progress::kEnding) {
    try {
      if (!done(rest_, block)) return false;
      farewell_ = comm_.all_gather_v({}, {}, memory_.all_bytes);
      progress_ = Progress::kLeaving;
    } catch (const InvalidArgument&) {
      // A block of another shape, or of too many rows, that does not fit; it counts as done.
    }
  }
  return done(farewell_, block) && released(rest_, block) && released(farewell_, block);
}

}  // namespace trimtab
