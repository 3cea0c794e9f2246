// SPDX-License-Identifier: Apache-2.0
#include "report/page_limits.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>

#include "trimtab/par.h"
#include "trimtab/table.h"

namespace trimtab {

std::vector<int> drawn_layers(const Report& report) {
  constexpr int64_t kMostNumbers = 300'000;  // of about 6 characters
  constexpr int64_t kMostLayers = 256;       // rows of a heat map that fit on a screen
  const int64_t layers = std::ssize(report.layer_ids);
  int64_t numbers = report.num_experts;
  for (const ReportState& state : report.states)
    numbers += state.placement.num_slots() + state.placement.num_ranks();
  std::vector<int> order(layers);
  std::iota(order.begin(), order.end(), 0);
  const int64_t fit = std::min(kMostLayers, kMostNumbers / std::max<int64_t>(numbers, 1));
  if (fit >= layers) return order;

  const ReportState& first = report.states[0];
  const int ranks = first.placement.num_ranks();
  std::vector<double> pars(layers);
  for (int64_t l = 0; l < layers; ++l)
    pars[l] = par(std::span(first.rank_load).subspan(cells(l, ranks), ranks));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return pars[a] > pars[b]; });
  order.resize(fit);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace trimtab
