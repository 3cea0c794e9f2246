// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "trimtab/error.h"
#include "trimtab/par.h"
#include "trimtab/report.h"
#include "trimtab/table.h"

namespace trimtab {

std::vector<int64_t> expert_load_of(const Load& load) {
  std::vector<int64_t> sum(cells(load.num_layers, load.num_experts));
  for (int64_t step = 0; step < load.num_steps; ++step) {
    const int64_t* counts = load.counts.data() + step * std::ssize(sum);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += counts[i];
  }
  return sum;
}

ReportState report_state(std::string name, const Placement& placement,
                         std::span<const int64_t> expert_load) {
  const int experts = placement.num_experts();
  if (expert_load.size() != cells(placement.num_layers(), experts)) {
    throw InvalidArgument(cat("report: ", expert_load.size(), " expert loads for ",
                              placement.num_layers(), " layers of ", experts, " experts"));
  }
  ReportState state{std::move(name), placement, {}};
  for (int layer = 0; layer < placement.num_layers(); ++layer) {
    const std::vector<double> loads =
        rank_loads(placement.logical(layer), placement.first_slots(),
                   expert_load.subspan(cells(layer, experts), cells(experts)));
    state.rank_load.insert(state.rank_load.end(), loads.begin(), loads.end());
  }
  return state;
}

ReportSeries report_series(std::string name, const Placement& placement, const Load& load) {
  if (load.num_layers != placement.num_layers() || load.num_experts != placement.num_experts()) {
    throw InvalidArgument(cat("report: a load of ", load.num_layers, " layers of ",
                              load.num_experts, " experts, a placement of ", placement.num_layers(),
                              " of ", placement.num_experts()));
  }
  const size_t steps = cells(load.num_steps);
  ReportSeries series{
      std::move(name), std::vector<double>(steps), std::vector<double>(steps, 1.0), {}};
  for (int layer = 0; layer < load.num_layers; ++layer) {
    const std::vector<double> pars = step_pars(rank_loads(placement, load, layer), 0);
    for (size_t step = 0; step < steps; ++step) {
      series.par[step] += pars[step] / load.num_layers;
      series.worst[step] = std::max(series.worst[step], pars[step]);
    }
  }
  return series;
}

}  // namespace trimtab
