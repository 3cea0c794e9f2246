// SPDX-License-Identifier: Apache-2.0
#include "trimtab/metrics.h"

#include <array>
#include <charconv>
#include <cmath>
#include <span>
#include <type_traits>

#include "base/cat.h"
#include "base/file.h"

namespace trimtab {

namespace {

// The shortest text that reads back as the same number, with the format's own names for what is
// none.
template <class Number>
std::string text_of(Number value) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  }
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

class Exposition {
 public:
  // The metric that the next samples are of.
  void begin(std::string_view metric, std::string_view type, std::string_view help) {
    metric_ = metric;
    text_ +=
        cat("# HELP trimtab_", metric, " ", help, "\n# TYPE trimtab_", metric, " ", type, "\n");
  }

  template <class Number>
  void sample(std::string_view labels, Number value) {
    text_ += cat("trimtab_", metric_, labels, " ", text_of(value), "\n");
  }

  template <class Number>
  void counter(std::string_view metric, std::string_view help, Number value) {
    begin(metric, "counter", help);
    sample("", value);
  }

  void gauge(std::string_view metric, std::string_view help, double value) {
    begin(metric, "gauge", help);
    sample("", value);
  }

  std::string take() { return std::move(text_); }

 private:
  std::string_view metric_;
  std::string text_;
};

}  // namespace

std::string_view name(BalanceEvent::Kind kind) {
  using enum BalanceEvent::Kind;
  switch (kind) {
    case kPlanned:
      return "planned";
    case kRejected:
      return "rejected";
    case kFailed:
      return "failed";
    case kLate:
      return "late";
    case kSwitched:
      return "switched";
    case kRolledBack:
      return "rolled back";
    case kSpeeds:
      return "speeds";
    case kLeftOut:
      return "left out";
    case kCommitted:
      return "committed";
  }
  return "";
}

std::string describe(const BalanceEvent& event) {
  std::string text(name(event.kind));
  if (event.layer >= 0) text += cat(", MoE layer ", event.layer);
  if (event.moves > 0) text += cat(", ", event.moves, " moves");
  if (!event.text.empty()) text += cat(": ", event.text);
  return text;
}

std::string prometheus_text(const BalanceMetrics& m) {
  Exposition out;
  out.begin("balancing_info", "gauge", "How the ranks are balanced; always 1.");
  out.sample(cat("{split=\"", m.split, "\",policy=\"", m.policy, "\"}"), 1);
  out.gauge("par_rows", "Busiest rank's rows over the mean, last window; 1 is level.", m.par_rows);
  if (m.par_time) {
    out.gauge("par_time", "Busiest rank's time over the mean in a step of the last window.",
              *m.par_time);
  }
  if (!m.rank_speeds.empty()) {
    out.begin("rank_speed", "gauge", "How fast the rank is beside the fastest one; 1 is as fast.");
    for (size_t rank = 0; rank < m.rank_speeds.size(); ++rank)
      out.sample(cat("{rank=\"", rank, "\"}"), m.rank_speeds[rank] / 1000.0);
  }
  out.begin("balancedness", "gauge", "Mean over busiest rank load of the last window; 1 is level.");
  out.sample("{stat=\"min\"}", m.balancedness_min);
  out.sample("{stat=\"mean\"}", m.balancedness_mean);
  out.counter("rebalances_total", "Plans of which at least one layer was switched.", m.rebalances);
  out.counter("plan_seconds_total", "Time in planners.", m.plan_seconds);
  out.counter("stall_seconds_total", "Time by which balancing held up steps.", m.stall_seconds);
  out.counter("moves_total", "Expert weights that moved to a slot.", m.moves);
  out.counter("moved_bytes_total", "Bytes of expert weights sent between ranks.", m.moved_bytes);
  out.gauge("predicted_gain", "PAR before less PAR after that the last applied plan promised.",
            m.predicted_gain);
  out.gauge("realised_gain", "PAR before less PAR after that the last applied plan brought.",
            m.realised_gain);
  out.counter("rolled_back_layers_total",
              "Layers that kept their placement because a transfer failed.", m.rolled_back_layers);
  out.counter("plans_failed_total", "Plans that the planner failed to make.", m.plans_failed);
  out.counter("plans_late_total", "Plans that were not ready at their deadline.", m.plans_late);
  out.counter("plans_rejected_total", "Plans whose gain did not repay their moves.",
              m.plans_rejected);
  out.begin("tokens_total", "counter", "Rows that the rank's experts got in recorded steps.");
  for (size_t rank = 0; rank < m.rank_tokens.size(); ++rank) {
    out.sample(cat("{rank=\"", rank, "\"}"), m.rank_tokens[rank]);
  }
  return out.take();
}

void write_metrics(const std::string& path, const BalanceMetrics& metrics) {
  const std::string text = prometheus_text(metrics);
  write_file(path, {std::as_bytes(std::span(text))});
}

}  // namespace trimtab
