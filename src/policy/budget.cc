// SPDX-License-Identifier: Apache-2.0
#include "policy/budget.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "trimtab/table.h"

namespace trimtab {
namespace {

// What the table may cost: additions, and entries. About a quarter of a second and 100 MB.
constexpr int64_t kMostSums = 200'000'000;
constexpr int64_t kMostEntries = 50'000'000;
// Up to this many moves every offer is kept.
constexpr int64_t kAllUpTo = 16;

// The offers on the upper concave hull from (0 moves, no gain), by ascending moves.
std::vector<int> hull(std::span<const Offer> offers) {
  std::vector<int> kept;
  const auto point = [&](std::ptrdiff_t i) { return i < 0 ? Offer{} : offers[cells(kept[i])]; };
  for (int next = 0; next < std::ssize(offers); ++next) {
    while (!kept.empty()) {
      const Offer a = point(std::ssize(kept) - 2), b = point(std::ssize(kept) - 1);
      const Offer c = offers[cells(next)];
      const double to_b = (b.gain - a.gain) * static_cast<double>(c.moves - a.moves);
      const double to_c = (c.gain - a.gain) * static_cast<double>(b.moves - a.moves);
      if (to_b > to_c) break;
      kept.pop_back();
    }
    kept.push_back(next);
  }
  return kept;
}

}  // namespace

std::vector<int> worthwhile(std::span<const Offer> offers, int most) {
  std::vector<int> order(offers.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int a, int b) {
    const Offer &x = offers[cells(a)], &y = offers[cells(b)];
    return std::pair(x.moves, -x.gain) < std::pair(y.moves, -y.gain);
  });
  std::vector<int> best;
  double gain = 0;
  for (const int i : order) {
    if (offers[cells(i)].gain <= gain) continue;
    gain = offers[cells(i)].gain;
    best.push_back(i);
  }
  if (std::ssize(best) <= most) return best;
  // Beyond few moves, those that are kept stand at least 1 / most of the largest apart.
  const double step = static_cast<double>(offers[cells(best.back())].moves) / most;
  std::vector<int> kept;
  double next = 0;
  for (const int i : best) {
    const auto moves = static_cast<double>(offers[cells(i)].moves);
    const bool few = offers[cells(i)].moves <= std::min<int64_t>(kAllUpTo, most / 2);
    if (!few && moves < next && i != best.back()) continue;
    kept.push_back(i);
    next = moves + step;
  }
  return kept;
}

Budget::Budget(std::vector<std::vector<Offer>> layers, int64_t max_moves, int64_t max_layers)
    : layers_(std::move(layers)), max_layers_(max_layers) {
  int64_t offering = 0;
  for (const std::vector<Offer>& offers : layers_) {
    if (offers.empty()) continue;
    ++offering;
    most_moves_ += offers.back().moves;
  }
  most_moves_ = std::min(most_moves_, max_moves);
  if (max_layers_ < offering) most_layers_ = max_layers_;
  if (max_layers_ > 0) fill_table();
}

void Budget::fill_table() {
  const bool counted = most_layers_ > 0;
  int64_t sums = 0;
  for (const std::vector<Offer>& offers : layers_) sums += std::ssize(offers) * cells_of_layer();
  const int64_t entries = std::ssize(layers_) * cells_of_layer();
  if (sums > kMostSums || entries > kMostEntries) return;
  const int64_t width = most_moves_ + 1;
  std::vector<double> gain(cells(cells_of_layer()), 0), before;
  choice_.assign(cells(entries), -1);
  for (size_t l = 0; l < layers_.size(); ++l) {
    before = gain;
    int16_t* choice = choice_.data() + cells(l, cells_of_layer());
    for (int64_t changed = counted ? 1 : 0; changed <= most_layers_; ++changed) {
      const double* from = before.data() + (counted ? changed - 1 : changed) * width;
      double* to = gain.data() + changed * width;
      for (size_t o = 0; o < layers_[l].size(); ++o) {
        const Offer offer = layers_[l][o];
        for (int64_t moves = offer.moves; moves <= most_moves_; ++moves) {
          const double sum = from[moves - offer.moves] + offer.gain;
          if (sum <= to[moves]) continue;
          to[moves] = sum;
          choice[changed * width + moves] = static_cast<int16_t>(o);
        }
      }
    }
  }
}

std::vector<int> Budget::choose(int64_t max_moves) const {
  assert(max_moves <= most_moves_);
  if (max_layers_ == 0) return std::vector<int>(layers_.size(), -1);
  return choice_.empty() ? along_hulls(max_moves) : from_table(max_moves);
}

std::vector<int> Budget::from_table(int64_t max_moves) const {
  std::vector<int> chosen(layers_.size(), -1);
  int64_t changed = most_layers_;
  for (size_t l = layers_.size(); l-- > 0;) {
    const int16_t choice =
        choice_[cells(l, cells_of_layer()) + cells(changed, most_moves_ + 1) + cells(max_moves)];
    chosen[l] = choice;
    if (choice < 0) continue;
    max_moves -= layers_[l][cells(choice)].moves;
    if (most_layers_ > 0) --changed;
  }
  return chosen;
}

std::vector<int> Budget::greedy(int64_t max_moves, const std::vector<bool>& may_change) const {
  struct Step {
    size_t layer;
    int offer;
    int64_t moves;
    double gain;
  };
  std::vector<Step> steps;
  for (size_t l = 0; l < layers_.size(); ++l) {
    if (!may_change[l]) continue;
    Offer last;
    for (const int o : hull(layers_[l])) {
      const Offer offer = layers_[l][cells(o)];
      steps.push_back({l, o, offer.moves - last.moves, offer.gain - last.gain});
      last = offer;
    }
  }
  // By gain per move. The steps of a layer stay in order, since its hull is concave.
  std::ranges::stable_sort(steps, [](const Step& a, const Step& b) {
    return a.gain * static_cast<double>(b.moves) > b.gain * static_cast<double>(a.moves);
  });
  std::vector<int> chosen(layers_.size(), -1);
  std::vector<bool> stopped(layers_.size(), false);
  for (const Step& step : steps) {
    if (stopped[step.layer]) continue;
    if (step.moves > max_moves) {
      stopped[step.layer] = true;
      continue;
    }
    chosen[step.layer] = step.offer;
    max_moves -= step.moves;
  }
  for (;;) {
    Step best{0, -1, 0, 0};
    for (size_t l = 0; l < layers_.size(); ++l) {
      if (!may_change[l]) continue;
      const Offer now = chosen[l] < 0 ? Offer{} : layers_[l][cells(chosen[l])];
      for (int o = 0; o < std::ssize(layers_[l]); ++o) {
        const Offer offer = layers_[l][cells(o)];
        if (offer.moves - now.moves > max_moves || offer.gain - now.gain <= best.gain) continue;
        best = {l, o, offer.moves - now.moves, offer.gain - now.gain};
      }
    }
    if (best.offer < 0) return chosen;
    chosen[best.layer] = best.offer;
    max_moves -= best.moves;
  }
}

std::vector<int> Budget::along_hulls(int64_t max_moves) const {
  std::vector<bool> may_change(layers_.size(), true);
  std::vector<int> chosen = greedy(max_moves, may_change);
  std::vector<size_t> changed;
  for (size_t l = 0; l < layers_.size(); ++l) {
    if (chosen[l] >= 0) changed.push_back(l);
  }
  if (std::ssize(changed) <= max_layers_) return chosen;
  std::ranges::stable_sort(changed, [&](size_t a, size_t b) {
    return layers_[a][cells(chosen[a])].gain > layers_[b][cells(chosen[b])].gain;
  });
  may_change.assign(layers_.size(), false);
  for (const size_t l : std::span(changed).first(cells(max_layers_))) may_change[l] = true;
  return greedy(max_moves, may_change);
}

}  // namespace trimtab
