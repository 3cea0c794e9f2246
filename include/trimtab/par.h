// SPDX-License-Identifier: Apache-2.0
// How level ranks are. Every figure about it is computed here, from RankLoads: PAR, the
// peak-to-average rank load (1.0 is level, 2.0 means that all wait for one rank with twice the
// mean), of a window and of single steps, how sure its mean is, and how much of it is chance.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trimtab/load.h"
#include "trimtab/rank_loads.h"

namespace trimtab {

// max / mean of the ranks' loads; 1.0 when nothing was routed. loads: [ranks].
double par(std::span<const double> loads);
double par(std::span<const int64_t> loads);
// mean / max of the ranks' loads: the part of the time in which the average rank works.
inline double balancedness(double par) {
  return 1 / par;
}

// The loads of some steps together: [ranks].
std::vector<double> summed_loads(const RankLoads& loads, int layer, StepRange steps);
// The PAR of each layer's window: [layers].
std::vector<double> window_pars(const RankLoads& loads);
// The PAR of the loads of some steps together, mean over the layers.
double window_par(const RankLoads& loads, StepRange steps);
// The PAR of each step: [steps]. A step without tokens counts 1.
std::vector<double> step_pars(const RankLoads& loads, int layer);
std::vector<double> step_pars(const RankLoads& loads, int layer, StepRange steps);

// The mean over the steps of the largest load of a rank; 0 without steps. Of rank times it is how
// long a step waits for its busiest rank.
double mean_step_peak(const RankLoads& loads, int layer);

// How level the ranks are in one layer.
struct Levelness {
  double par = 1;            // PAR of the loads of all steps together
  double par_step_mean = 1;  // mean over the steps of the step's PAR
  // The upper end of the 95 % interval of par_step_mean; see upper_95().
  double par_step_high = 1;
  double par_step_worst = 1;  // the largest PAR of a step: that of worst_step
  int64_t worst_step = 0;
};
Levelness levelness(const RankLoads& loads, int layer);
// The same for some steps. worst_step counts from the first of all steps.
Levelness levelness(const RankLoads& loads, int layer, StepRange steps);
// The mean of each figure over the layers; par_step_worst and worst_step are of the worst layer.
Levelness mean_over_layers(std::span<const Levelness> layers);

// The mean of the values; 0 where there are none.
double mean_of(std::span<const double> values);
// The upper end of the two-sided 95 % interval of the mean of a series whose neighbours may be
// correlated: Student's t over the means of up to 16 runs of consecutive values. With fewer than
// two values it is their mean.
double upper_95(std::span<const double> series);

// The mean step PAR that chance alone leaves when all ranks expect the same: the mean over the
// steps of E[max] / mean of num_ranks independent Poisson counts, each with the step's tokens /
// num_ranks as its mean. step_tokens: [steps] of one layer.
double noise_floor(std::span<const int64_t> step_tokens, int num_ranks);
double noise_floor(const Load& load, int layer, int num_ranks);
double noise_floor(const RankLoads& loads, int layer, StepRange steps);

// How much higher PAR is than the PAR that chance alone leaves, as a mean over the layers; 0 where
// chance may well leave as much, within 4 standard deviations of independent Poisson counts.
struct AboveChance {
  double steps = 0;   // for the mean PAR of single steps
  double window = 0;  // for the PAR of all steps together
};
AboveChance above_chance(const RankLoads& loads);
// The first gate of live balancing: a window is planned on only if its PAR, of steps or of all of
// them together, is above what chance leaves by more than plan_above_par - 1.
bool is_worth_planning(const AboveChance& above, double plan_above_par);

}  // namespace trimtab
