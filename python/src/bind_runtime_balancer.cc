// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "bindings.h"
#include "runtime_balancer.h"
#include "trimtab/error.h"
#include "trimtab/metrics.h"

namespace trimtab::python {
namespace {

using namespace nb::literals;
using WithoutGil = nb::call_guard<nb::gil_scoped_release>;

void make_balancer(RuntimeBalancer* self, std::shared_ptr<MoeRuntime> runtime,
                   const std::string& settings, int redundant) {
  if (runtime == nullptr) throw InvalidArgument("a balancer needs a runtime");
  const BalancerConfig config =
      parse_balancer_config(settings, "the balancer's settings", runtime->cost() != nullptr);
  new (self) RuntimeBalancer(std::move(runtime), config, redundant);
}

Phase phase_named(const std::string& name) {
  if (name == "prefill") return Phase::kPrefill;
  if (name == "decode") return Phase::kDecode;
  throw InvalidArgument(cat("phase must be prefill or decode, not ", name));
}

// (kind, what it says): see trimtab::BalanceEvent.
std::vector<std::pair<std::string, std::string>> take_events(RuntimeBalancer& balancer) {
  std::vector<std::pair<std::string, std::string>> events;
  for (const BalanceEvent& event : balancer.take_events())
    events.emplace_back(name(event.kind), describe(event));
  return events;
}

// A figure of the metrics, which are copied.
template <class Value>
auto figure(Value BalanceMetrics::* value) {
  return [value](const RuntimeBalancer& balancer) { return balancer.metrics().*value; };
}

}  // namespace

void bind_runtime_balancer(nb::module_& m) {
  nb::class_<RuntimeBalancer>(
      m, "RuntimeBalancer",
      "Live balancing of a MoeRuntime by the C++ Balancer; use it through trimtab.Balancer.")
      .def("__init__", &make_balancer, "runtime"_a, "settings"_a, "redundant"_a, WithoutGil())
      .def(
          "step",
          [](RuntimeBalancer& balancer, const std::string& phase, bool counts) {
            balancer.step(phase_named(phase), counts);
          },
          "phase"_a = "decode", "counts"_a = true, WithoutGil())
      .def("finish", &RuntimeBalancer::finish, "counts"_a = true, WithoutGil())
      .def("_take_events", &take_events, WithoutGil())
      .def(
          "metrics",
          [](const RuntimeBalancer& balancer) { return prometheus_text(balancer.metrics()); },
          WithoutGil(), "The text for Prometheus.")
      .def_prop_ro("runtime", &RuntimeBalancer::runtime)
      .def_prop_ro("placement", &RuntimeBalancer::placement, WithoutGil())
      .def_prop_ro(
          "split", [](const RuntimeBalancer& balancer) { return balancer.metrics().split; },
          "The rule that shares tokens out over replicas.")
      .def_prop_ro("par", figure(&BalanceMetrics::par_rows), "PAR of the last window, in rows.")
      .def_prop_ro("par_time", figure(&BalanceMetrics::par_time),
                   "PAR of the last window, in time; None without a cost.")
      .def_prop_ro("replans", figure(&BalanceMetrics::rebalances),
                   "Plans of which at least one layer was switched.")
      .def_prop_ro("moves", figure(&BalanceMetrics::moves), "Experts moved.")
      .def_prop_ro("failed", figure(&BalanceMetrics::plans_failed), "Plans that failed.")
      .def_prop_ro("late", figure(&BalanceMetrics::plans_late),
                   "Plans that were not there in time.")
      .def_prop_ro("rejected", figure(&BalanceMetrics::plans_rejected),
                   "Plans that would not have paid.")
      .def_prop_ro("plan_seconds", figure(&BalanceMetrics::plan_seconds), "Seconds in the planner.")
      .def_prop_ro(
          "verdict",
          [](const RuntimeBalancer& balancer) { return std::string(name(balancer.verdict())); },
          "Whether plans that were screened would have paid.");
}

}  // namespace trimtab::python
