// SPDX-License-Identifier: Apache-2.0
// Planners look at a window of many steps as a few episodes: runs of consecutive steps, added up.
#pragma once

#include <cstdint>

#include "trimtab/load.h"

namespace trimtab {

// Which steps belong to which episode.
class EpisodeCut {
 public:
  // At most `most` (>= 1) episodes of equally many steps to within one; no step is left out.
  static EpisodeCut spread(int64_t num_steps, int64_t most);
  // At most `most` (>= 1) episodes of exactly equally many steps. The newest step is in the last
  // one; the oldest steps, which fill no episode, are left out.
  static EpisodeCut even(int64_t num_steps, int64_t most);

  int64_t count() const { return count_; }
  // The steps of an episode, 0 <= episode < count().
  StepRange operator[](int64_t episode) const {
    return {first_ + episode * steps_ / count_, first_ + (episode + 1) * steps_ / count_};
  }

 private:
  EpisodeCut(int64_t first, int64_t steps, int64_t count)
      : first_(first), steps_(steps), count_(count) {}

  int64_t first_, steps_;  // the steps that are in episodes
  int64_t count_;
};

// The load with its episodes as its steps. The cut must be one of load.num_steps.
Load to_episodes(const Load& load, const EpisodeCut& cut);

}  // namespace trimtab
