// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/paired.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "bench/machine/stopwatch.h"

namespace trimtab::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Of one pair, at least: less would be lost in the time that threads take to start.
constexpr double kPairSeconds = 3e-3;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double quantile(const std::vector<double>& sorted, double part) {
  const double place = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - std::floor(place)) * (sorted[above] - sorted[below]);
}

}  // namespace

double roof_seconds(std::span<const Part> parts, double peak, double stream) {
  double seconds = 0;
  for (const Part& part : parts) seconds += std::max(part.ops / peak, part.bytes / stream);
  return seconds;
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {quantile(values, 0.25), quantile(values, 0.5), quantile(values, 0.75)};
}

Timing measure(const Subject& subject, DotKind dot, const Effort& effort, Ceilings& ceilings) {
  std::vector<double> ms, gflops, stream_ratio, peak_ratio, roof_ratio;
  const auto begin = Clock::now();
  int64_t call = 0;
  subject.run(call++);
  const double least = roof_seconds(subject.work(0), ceilings.peak(dot), ceilings.stream());
  const auto calls = static_cast<int64_t>(std::ceil(kPairSeconds / std::max(least, 1e-6)));
  while (std::ssize(ms) < effort.least ||
         (std::ssize(ms) < effort.most && since(begin) < effort.seconds)) {
    const double peak = ceilings.peak(dot), stream = ceilings.stream();
    const int64_t first = call;
    const Stopwatch watch(ceilings.team());
    for (; call < first + calls; ++call) subject.run(call);
    const double seconds = watch.seconds();
    double ops = 0, bytes = 0, roof = 0;
    for (int64_t c = first; c < call; ++c) {
      const std::span<const Part> parts = subject.work(c);
      for (const Part& part : parts) ops += part.ops, bytes += part.bytes;
      roof += roof_seconds(parts, peak, stream);
    }
    ms.push_back(1e3 * seconds / static_cast<double>(calls));
    gflops.push_back(1e-9 * ops / seconds);
    stream_ratio.push_back(100 * bytes / seconds / stream);
    peak_ratio.push_back(100 * ops / seconds / peak);
    roof_ratio.push_back(100 * roof / seconds);
  }
  return {spread_of(ms),         spread_of(gflops).median, spread_of(stream_ratio),
          spread_of(peak_ratio), spread_of(roof_ratio),    static_cast<int>(ms.size())};
}

}  // namespace trimtab::bench
