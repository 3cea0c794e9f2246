// SPDX-License-Identifier: Apache-2.0
// The common part of exchanges over collectives. They gather the ranks' terms beside the first
// rows, so comparing them costs no round trip; with a row budget also how many rows each rank has
// for each, so that all find alike whether one gets too many. Where picks are shared out over
// replicas before any row leaves, the counts travel with the terms too.
#pragma once

#include <span>

#include "base/carver.h"
#include "dispatch/staged_exchange.h"
#include "dispatch/terms.h"

namespace trimtab {

class CollectiveExchange : public StagedExchange {
 public:
  // Peers read it until the exchange is drained.
  struct TermsMemory {
    // The terms, then with a row budget the rows for each rank, then with `counts` this rank's.
    std::span<int64_t> own;
    std::span<int64_t> all;           // the same of all ranks, one after the other
    std::span<int64_t> all_bytes;     // [ranks]
    std::span<int64_t> rows_of_rank;  // [ranks] what each gets from all
    // [ranks, experts] of requests with replicas: the picks of each rank for each logical expert,
    // known once the terms are. Set by exchanges that want them with the terms; else empty.
    std::span<int32_t> counts = {};
  };
  // with_counts: there may be `counts`.
  static TermsMemory plan_terms(Carver& carver, const RankShape& shape, bool with_counts = false) {
    // There is room for what ranks send whose shapes differ: they are to find that out.
    const int64_t own = with_counts ? count_words(shape.num_experts) : 0;
    const int64_t most = with_counts ? count_words(shape.num_slots()) : 0;
    return {carver.take<int64_t>(kTermsWords + (shape.bounded() ? shape.ranks : 0) + own),
            carver.take<int64_t>(shape.ranks * (kTermsWords + shape.ranks + most)),
            carver.take<int64_t>(shape.ranks), carver.take<int64_t>(shape.ranks)};
  }

 protected:
  // Starts to gather the terms. Derived classes start their own collectives after it.
  CollectiveExchange(const RankShape& shape, const Request& request, Lane& lane,
                     const TermsMemory& memory);

  // As come_to(), once the terms have been found equal and no rank over budget.
  virtual bool go_to(Stage stage, bool block) = 0;
  // Every rank finds that terms differ or that one is over budget. Starts what others may have
  // started by now and this rank has not, with no rows, so that all are even; returns the last one.
  virtual Pending start_the_rest() = 0;

  // [ranks] scratch for the rows that each rank gets.
  std::span<int64_t> rows_of_rank() const { return memory_.rows_of_rank; }

 private:
  static constexpr int64_t kTermsWords = sizeof(Terms) / sizeof(int64_t);
  static_assert(sizeof(Terms) % sizeof(int64_t) == 0);
  static int64_t count_words(int64_t experts) { return (experts + 1) / 2; }

  bool come_to(Stage stage, bool block) final;
  void write_message();
  void read_counts(size_t rank, std::span<const int64_t> message);
  bool counts_travel() const {
    return !memory_.counts.empty() && request_.replicas.table != nullptr;
  }
  bool agree(bool block);
  void compare();
  bool end_together(bool block);

  const TermsMemory memory_;
  const Terms own_;
  Terms theirs_;
  int other_ = -1;  // the first rank with other terms than this one, which are theirs_
  Pending terms_, rest_, farewell_;
  enum class Progress { kGathering, kCompared, kEnding, kLeaving } progress_ = Progress::kGathering;
};

}  // namespace trimtab
