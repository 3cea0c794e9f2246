// SPDX-License-Identifier: Apache-2.0
// Learns how fast each rank is from what its experts took in windows of steps. A rank may be slower
// than another since its machine is, or since something else runs there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "trimtab/cost_model.h"

namespace trimtab {

// The time of one rank's experts in the steps of a window, in nanoseconds.
struct RankTime {
  int64_t nominal = 0;   // what the cost model says of the rows that they got, at nominal speed
  int64_t measured = 0;  // what they took; 0: nobody has measured it
  bool operator==(const RankTime&) const = default;
};

// Speeds are relative to the fastest rank's: what the cost model says of all ranks alike does not
// count. Times vary from window to window, so speeds change only when two windows in a row say so:
// each must have a rank whose speed differs by more than a tenth from the one in use, and the two
// must agree as closely.
class RankSpeeds {
 public:
  explicit RankSpeeds(int64_t num_ranks) : in_use_(static_cast<size_t>(num_ranks), 1.0) {}

  // window: [ranks]. Returns the speeds to be used from now on, as CostModel takes them, when they
  // are others than before. A window in which a rank has no time says nothing.
  std::optional<std::vector<int32_t>> take(std::span<const RankTime> window);
  size_t num_ranks() const { return in_use_.size(); }

 private:
  std::vector<double> in_use_;  // [ranks] of the fastest rank's speed
  std::vector<double> last_;    // of the window before, if it differed from those in use
};

// The cost model that the layers share out by, on one rank. Rank 0 measures speeds; they are in use
// once all ranks have heard of them, from the same step on.
class CostInUse {
 public:
  // given: null: rows. measures: false: its speeds stay as they are. So they do where the model has
  // speeds already, and where an expert takes as long as it has rows, which says nothing of times.
  CostInUse(std::shared_ptr<const CostModel> given, int64_t num_ranks, bool measures);

  const std::shared_ptr<const CostModel>& now() const { return now_; }
  // On rank 0: what is to be in use next, by which plans are made.
  const std::shared_ptr<const CostModel>& next() const { return next_ ? next_ : now_; }

  // Rank 0 hears what ranks took in a window: [ranks].
  void take(std::span<const RankTime> window);
  // Rank 0 tells these: [ranks]; empty: nothing new.
  std::vector<int32_t> to_tell() const;
  // All ranks use what rank 0 has told.
  void use(std::span<const int32_t> speeds);

 private:
  std::shared_ptr<const CostModel> now_, next_;
  bool measures_;
  RankSpeeds speeds_;
};

}  // namespace trimtab
