// SPDX-License-Identifier: Apache-2.0
// The common part of exchanges over collectives. They gather the ranks' terms beside the first
// rows, so comparing them costs no round trip.
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
    Terms* own = nullptr;
    std::span<Terms> all;          // [ranks]
    std::span<int64_t> all_bytes;  // [ranks]
  };
  static TermsMemory plan_terms(Carver& carver, const RankShape& shape) {
    return {carver.take<Terms>(1).data(), carver.take<Terms>(shape.ranks),
            carver.take<int64_t>(shape.ranks)};
  }

 protected:
  // Starts to gather the terms. Derived classes start their own collectives after it.
  CollectiveExchange(const RankShape& shape, const Request& request, Lane& lane,
                     const TermsMemory& memory);

  // As come_to(), once the terms have been found equal.
  virtual bool go_to(Stage stage, bool block) = 0;
  // The ranks' terms differ, as every rank finds. Starts what other ranks may have started by now
  // and this one has not, with no rows, so that all have started the same; returns the last one.
  virtual Pending start_the_rest() = 0;

 private:
  bool come_to(Stage stage, bool block) final;
  bool agree(bool block);
  bool finish_together(bool block);

  const TermsMemory memory_;
  Pending terms_, rest_, farewell_;
  int other_ = -1;  // the first rank with other terms than this one
  enum class Progress { kGathering, kAgreed, kDiffer, kLeaving } progress_ = Progress::kGathering;
};

}  // namespace trimtab
