// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cli/output/line_printer.h"
#include "cli/output/output.h"
#include "trimtab/cost_file.h"
#include "trimtab/experts.h"

namespace trimtab::cli {

namespace {

using bench::Ceilings;
using bench::DotKind;

template <class Measure>
double median_of(const Measure& once) {
  std::vector<double> values;
  for (int i = 0; i < 25; ++i) values.push_back(once());
  return bench::spread_of(std::move(values)).median;
}

IsaResult measure_isa(Ceilings& ceilings) {
  IsaResult result{.isa = ceilings.loops().isa, .dots = {}, .peaks = {}, .stream = 0};
  for (const DotKind kind : {DotKind::kF32, DotKind::kBF16, DotKind::kI8}) {
    const auto k = static_cast<size_t>(kind);
    result.dots[k] = &dot_loop(ceilings.loops(), kind);
    result.peaks[k] = 1e-9 * median_of([&] { return ceilings.peak(kind); });
  }
  result.stream = 1e-9 * median_of([&] { return ceilings.stream(); });
  return result;
}

size_t cold_memory(const BenchOptions& options) {
  return bench::cold_bytes(static_cast<size_t>(options.cold_mb) << 20);
}

void print(const BenchOptions& options, const BenchResult& result) {
  print_report(options.json ? bench_json_report(result) : bench_text_report(result));
}

// What an expert takes is what its two products do.
MeasuredCost cost_of(const std::string& shape, const bench::WeightDType& dtype, int threads,
                     const std::vector<bench::GemmRow>& gemms) {
  const bench::ModelShape& model = bench::parse_model(shape);
  std::map<int64_t, double> seconds;  // by rows, ascending
  for (const bench::GemmRow& gemm : gemms) seconds[gemm.m] += 1e-3 * gemm.timing.ms.median;
  std::vector<int64_t> rows;
  std::vector<double> times;
  for (const auto& [m, time] : seconds) {
    rows.push_back(m);
    times.push_back(time);
  }
  return {.shape = shape,
          .hidden = model.hidden,
          .intermediate = model.intermediate,
          .weights = name(dtype.weights),
          .isa = std::string(kernel_isa()),
          .threads = threads,
          .cost = cost_of_measured(rows, times)};
}

template <class Rows>
void append(Rows& to, Rows&& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void bench_isa(const BenchOptions& options) {
  BenchResult result{.kernels = kernel_isa(), .threads = options.threads};
  LinePrinter printer;
  Team team(options.threads);
  for (const bench::IsaLoops* loops : bench::available_loops()) {
    printer.status(fmt::format("measuring {}", loops->isa));
    Ceilings ceilings(*loops, team, cold_memory(options));
    result.isas.push_back(measure_isa(ceilings));
  }
  printer.finish("measured");
  print(options, result);
}

void bench_experts(const BenchOptions& options) {
  check_writable("--cost-out", options.cost_out);
  BenchResult result{.kernels = kernel_isa(), .threads = options.threads};
  LinePrinter printer;
  Team team(options.threads);
  printer.status("measuring the machine");
  Ceilings ceilings(bench::chosen_loops(), team, cold_memory(options));
  result.isas.push_back(measure_isa(ceilings));
  const bench::BenchContext context{
      .team = team,
      .ceilings = ceilings,
      .effort = {.seconds = options.seconds},
      .cold_bytes = cold_memory(options),
      .progress = [&](const std::string& what) { printer.status(what); }};
  std::vector<MeasuredCost> costs;
  std::vector<bench::RoutingKind> routings;
  for (const std::string& name : options.routings) routings.push_back(bench::find_routing(name));
  for (const std::string& shape : options.shapes) {
    for (const std::string& name : options.dtypes) {
      const bench::WeightDType& dtype = bench::find_weight_dtype(name);
      if (options.layer) {
        append(result.layers,
               bench_layer(bench::parse_model(shape), dtype, options.tokens, routings, context));
      } else {
        std::vector<bench::GemmRow> gemms = bench_gemms(shape, dtype, options.m, context);
        if (!options.cost_out.empty())
          costs.push_back(cost_of(shape, dtype, options.threads, gemms));
        append(result.gemms, std::move(gemms));
      }
    }
  }
  if (!options.cost_out.empty()) write_costs(options.cost_out, costs);
  printer.finish("verified and measured");
  print(options, result);
}

}  // namespace trimtab::cli
