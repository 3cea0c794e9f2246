// SPDX-License-Identifier: Apache-2.0
// What a placement of one layer costs where it serves: with the tokens of steps shared out by the
// problem's split rule, in rows or in time. Once exactly, by the rule itself, and once quickly, for
// searches that compare many placements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "split/split_loads.h"
#include "trimtab/policy.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {

// The steps of one layer that a placement is judged by, and what each weighs; the weights sum to 1.
struct ServedSteps {
  Load load;                    // of one layer
  std::vector<double> weights;  // [steps]
};
// With a cost model, single steps of the window, evenly chosen, since what an expert costs depends
// on its rows in a step; else the window in runs of steps and, before them, what the history
// remembers. At most max_count of each. Steps without tokens are left out.
ServedSteps served_steps(const Problem& problem, int layer, int max_count);

// The peak of a step, weighted mean over the steps, as a part of the mean load that a rank has
// where every expert's tokens stay together: in rows it is the PAR. In time the PAR would not do,
// since it falls where replicas only add work to other ranks.
double served_cost(const Placement& like, std::span<const int32_t> logical,
                   const ServedSteps& steps, const Serving& serving);

// A quick estimate of served_cost(), of placements of the same slots.
class QuickCost {
 public:
  // What is given must outlive this.
  QuickCost(const ServedSteps& steps, SlotRanges slots, const Serving& serving);

  struct Value {
    double peak = 0;     // estimates served_cost()
    double squares = 0;  // mean square of the ranks' loads: what a search may lower where the peak
                         // does not move yet
  };
  // logical: [slots].
  Value of(std::span<const int32_t> logical);

 private:
  void find_holders(std::span<const int32_t> logical);
  void share_equally(int64_t step, std::span<const int32_t> logical);
  void place_whole(int64_t step);
  void level_out(int64_t step);
  void fill(int64_t step, int32_t expert);

  double whole(int64_t step, int32_t expert) const { return whole_[step * experts_ + expert]; }
  int32_t num_holders(int32_t expert) const { return first_[expert + 1] - first_[expert]; }

  const ServedSteps& steps_;
  const SlotRanges slots_;
  const Serving serving_;
  const int64_t experts_;
  std::vector<double> unit_;              // [steps] one divided by the step's mean rank load
  std::vector<double> whole_;             // [steps, experts] cost of all tokens together
  std::vector<uint8_t> is_divided_;       // [steps, experts] shared out freely, else kept together
  std::vector<int32_t> order_;            // [steps, experts] falling cost
  std::vector<double> slowness_, speed_;  // [ranks] one divided by the other
  // Of the placement.
  std::vector<int32_t> first_, holder_;  // [experts + 1], [replicas] the ranks of each expert
  std::vector<int32_t> replicas_;        // [experts] slots
  std::vector<int32_t> chosen_;          // [experts] the rank of an expert that stays together
  std::vector<double> flow_;             // [replicas] what each holder carries
  std::vector<double> load_;             // [ranks]
};

}  // namespace trimtab
