// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/episodes.h"

#include <algorithm>

#include "base/portable_math.h"
#include "load/episodes.h"
#include "trimtab/table.h"

namespace trimtab {

namespace {

// One more episode, if it has tokens. rows: what to add up.
class Collector {
 public:
  Collector(int num_experts, int num_ranks) : num_experts_(num_experts), num_ranks_(num_ranks) {}

  void add(std::span<const double> counts, double weight) {
    double total = 0;
    for (const double count : counts) total += count;
    if (total <= 0 || weight <= 0) return;
    const double scale = num_ranks_ / total;
    for (const double count : counts) rows_.push_back(static_cast<float>(count * scale));
    weights_.push_back(weight);
  }

  Episodes take() const {
    const size_t count = weights_.size();
    Episodes result{.count = static_cast<int>(count),
                    .num_experts = static_cast<int>(num_experts_),
                    .share = std::vector<float>(rows_.size()),
                    .weight = {}};
    double sum = 0;
    for (const double weight : weights_) sum += weight;
    for (const double weight : weights_) result.weight.push_back(static_cast<float>(weight / sum));
    for (size_t k = 0; k < count; ++k) {
      for (size_t e = 0; e < num_experts_; ++e)
        result.share[e * count + k] = rows_[k * num_experts_ + e];
    }
    return result;
  }

 private:
  size_t num_experts_;
  int num_ranks_;
  std::vector<float> rows_;  // [episodes][experts]
  std::vector<double> weights_;
};

double halvings(double n) {
  return coarse_exp(static_cast<float>(-0.69314718 * n));
}

}  // namespace

Episodes layer_episodes(const Load& window, const History* history, int layer, int max_count,
                        int num_ranks) {
  Collector collector(window.num_experts, num_ranks);
  std::vector<double> sum(window.num_experts);
  if (history != nullptr) {
    for (int64_t k = 0; k < history->episodes.num_steps; ++k) {
      const std::span<const int64_t> counts = history->episodes.at(k, layer);
      std::copy(counts.begin(), counts.end(), sum.begin());
      collector.add(sum, history->weights[k]);
    }
  }
  const EpisodeCut cut = EpisodeCut::spread(window.num_steps, max_count);
  for (int64_t k = 0; k < cut.count(); ++k) {
    std::fill(sum.begin(), sum.end(), 0.0);
    const StepRange steps = cut[k];
    for (int64_t t = steps.first; t < steps.last; ++t) {
      const std::span<const int64_t> counts = window.at(t, layer);
      for (size_t e = 0; e < sum.size(); ++e) sum[e] += static_cast<double>(counts[e]);
    }
    collector.add(sum, static_cast<double>(steps.size()));
  }
  return collector.take();
}

void exaggerate(Episodes& episodes, float factor) {
  const size_t count = cells(episodes.count);
  for (int e = 0; e < episodes.num_experts; ++e) {
    float* share = episodes.share.data() + cells(e, count);
    float mean = 0;
    for (size_t k = 0; k < count; ++k) mean += episodes.weight[k] * share[k];
    for (size_t k = 0; k < count; ++k) share[k] = std::max(0.0F, mean + factor * (share[k] - mean));
  }
}

Episodes mean_episode(const Episodes& episodes) {
  Episodes mean{.count = 1, .num_experts = episodes.num_experts, .share = {}, .weight = {1}};
  for (int e = 0; e < episodes.num_experts; ++e) {
    const std::span<const float> share = episodes.of(e);
    float sum = 0;
    for (int k = 0; k < episodes.count; ++k) sum += episodes.weight[k] * share[k];
    mean.share.push_back(sum);
  }
  return mean;
}

History remember(const History* history, const Load& window, double half_life, int64_t run_steps,
                 int64_t max_episodes) {
  History result;
  const EpisodeCut cut = EpisodeCut::spread(
      window.num_steps, std::max<int64_t>(1, std::min(max_episodes, window.num_steps / run_steps)));
  result.episodes = to_episodes(window, cut);
  result.steps_seen = window.num_steps;
  for (int64_t k = 0; k < cut.count(); ++k) {
    const StepRange steps = cut[k];
    const double age = static_cast<double>(window.num_steps - steps.last);
    result.weights.push_back(static_cast<double>(steps.size()) * halvings(age / half_life));
  }
  if (history == nullptr) return result;
  result.steps_seen += history->steps_seen;
  const double aged = halvings(static_cast<double>(window.num_steps) / half_life);
  const int64_t kept = std::min(history->episodes.num_steps, max_episodes - cut.count());
  const int64_t dropped = history->episodes.num_steps - kept;
  const int64_t cells = int64_t{window.num_layers} * window.num_experts;
  std::vector<double> weights;
  for (int64_t k = dropped; k < history->episodes.num_steps; ++k) {
    weights.push_back(history->weights[k] * aged);
  }
  result.weights.insert(result.weights.begin(), weights.begin(), weights.end());
  result.episodes.counts.insert(result.episodes.counts.begin(),
                                history->episodes.counts.begin() + dropped * cells,
                                history->episodes.counts.end());
  result.episodes.num_steps += kept;
  return result;
}

}  // namespace trimtab
