// SPDX-License-Identifier: Apache-2.0
#include "load/episodes.h"

#include <algorithm>
#include <functional>

#include "trimtab/table.h"

namespace trimtab {

EpisodeCut EpisodeCut::spread(int64_t num_steps, int64_t most) {
  return {0, num_steps, std::min(num_steps, most)};
}

EpisodeCut EpisodeCut::even(int64_t num_steps, int64_t most) {
  const int64_t each = std::max<int64_t>(1, (num_steps + most - 1) / most);
  const int64_t count = num_steps / each;
  return {num_steps - count * each, count * each, count};
}

Load to_episodes(const Load& load, const EpisodeCut& cut) {
  const int64_t of_step = int64_t{load.num_layers} * load.num_experts;
  Load episodes{cut.count(), load.num_layers, load.num_experts, {}};
  episodes.counts.resize(cells(cut.count(), of_step));
  const Table<const int64_t> from(load.counts.data(), load.num_steps, of_step);
  const Table<int64_t> to(episodes.counts.data(), cut.count(), of_step);
  for (int64_t episode = 0; episode < cut.count(); ++episode) {
    const StepRange steps = cut[episode];
    for (int64_t step = steps.first; step < steps.last; ++step)
      std::ranges::transform(to[episode], from[step], to[episode].begin(), std::plus());
  }
  return episodes;
}

}  // namespace trimtab
