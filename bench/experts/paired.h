// SPDX-License-Identifier: Apache-2.0
// Timing against ceilings that move: before every timed call the peak and the stream are measured,
// and the ratios are formed there and then. What is reported is the median over the pairs, with the
// quartiles.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "bench/machine/ceilings.h"

namespace trimtab::bench {

// Arithmetic and memory that overlap at best: an expert, or one of its matrices.
struct Part {
  double ops;    // multiplications and additions
  double bytes;  // of weights, each read once
};

// The least time for all parts, one after another.
double roof_seconds(std::span<const Part> parts, double peak, double stream);

struct Spread {
  double low = 0, median = 0, high = 0;  // quartiles
};
Spread spread_of(std::vector<double> values);

// For how long a subject is measured.
struct Effort {
  double seconds = 1.0;
  int least = 7;  // pairs, however long they take
  int most = 301;
};

struct Subject {
  std::function<void(int64_t call)> run;
  std::function<std::span<const Part>(int64_t call)> work;
};

struct Timing {
  Spread ms;
  double gflops = 0;
  Spread pct_stream, pct_peak, pct_roof;
  int pairs = 0;
};

// Calls 0, 1, 2, ...; those of one pair are as many as take a few milliseconds together.
Timing measure(const Subject& subject, DotKind dot, const Effort& effort, Ceilings& ceilings);

}  // namespace trimtab::bench
