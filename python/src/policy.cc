// SPDX-License-Identifier: Apache-2.0
// Policies and plans.
#include "trimtab/policy.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <filesystem>

#include "interruptible.h"
#include "numbers.h"
#include "planning.h"
#include "split/split_loads.h"
#include "trimtab/recordings.h"
#include "trimtab/replay.h"
#include "trimtab/report.h"

namespace trimtab::python {
namespace {

// A plan with what it was made from, so that it can be shown and written.
struct Planned {
  Plan plan;
  nb::object load, current;  // the Python objects
  std::string policy;
  double seconds;
  std::vector<int32_t> node_of_rank;
  std::vector<int> layer_ids;     // [layers]
  std::vector<int64_t> step_ids;  // [steps]
};

// What every plan gets beside loads and a placement: the keyword arguments of rebalance() and
// replay().
struct Settings {
  std::string split = "equal";
  const CostModel* cost = nullptr;
  std::optional<std::vector<int32_t>> node_of_rank;
  int num_groups = 1;
  std::vector<std::string> node_rules;
  int64_t expert_bytes = 0;
  std::optional<int64_t> max_moves_per_layer, max_bytes, max_layers, max_receive_per_rank;

  Topology topology() const { return {node_of_rank.value_or(std::vector<int32_t>())}; }
  PlanLimits limits() const {
    return {.max_moves_per_layer = max_moves_per_layer.value_or(PlanLimits::kNone),
            .max_bytes = max_bytes.value_or(PlanLimits::kNone),
            .max_layers = max_layers.value_or(PlanLimits::kNone),
            .max_receive_per_rank = max_receive_per_rank.value_or(PlanLimits::kNone)};
  }
};

Planned rebalance(const Policy& policy, nb::handle_t<Load> load, nb::handle_t<Placement> current,
                  const Settings& settings, const History* history,
                  std::optional<std::vector<int>> layer_ids,
                  std::optional<std::vector<int64_t>> step_ids) {
  const Problem problem{.load = nb::cast<const Load&>(load),
                        .current = nb::cast<const Placement&>(current),
                        .topology = settings.topology(),
                        .limits = settings.limits(),
                        .expert_bytes = settings.expert_bytes,
                        .num_groups = settings.num_groups,
                        .rules = parse_node_rules(settings.node_rules),
                        .history = history,
                        .split = parse_sharing(settings.split),
                        .cost = settings.cost};
  std::vector<int> layers =
      ids_or_counted(std::move(layer_ids), problem.load.num_layers, "layer_ids");
  std::vector<int64_t> steps =
      ids_or_counted(std::move(step_ids), problem.load.num_steps, "step_ids");
  std::optional<Plan> plan;
  double seconds = 0;
  run_interruptible([&](const std::atomic<bool>& stop) {
    Problem stoppable = problem;
    stoppable.stop = &stop;
    const auto start = std::chrono::steady_clock::now();
    plan = policy.rebalance(stoppable);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
  return {std::move(*plan),           nb::borrow(load), nb::borrow(current),
          std::string(policy.name()), seconds,          problem.topology.node_of_rank,
          std::move(layers),          std::move(steps)};
}

// (figures of ReplayResult by name, plans): see trimtab::replay().
nb::tuple replay_policy(const Policy& policy, nb::handle_t<Load> load,
                        nb::handle_t<Placement> start, int64_t window, const Settings& settings,
                        std::optional<std::vector<int>> layer_ids,
                        std::optional<std::vector<int64_t>> step_ids) {
  const auto& recorded = nb::cast<const Load&>(load);
  const ReplayConfig config{.window = window,
                            .split = parse_sharing(settings.split),
                            .cost = settings.cost,
                            .topology = settings.topology(),
                            .limits = settings.limits(),
                            .expert_bytes = settings.expert_bytes,
                            .num_groups = settings.num_groups,
                            .rules = parse_node_rules(settings.node_rules)};
  const std::vector<int> layers =
      ids_or_counted(std::move(layer_ids), recorded.num_layers, "layer_ids");
  const std::vector<int64_t> steps =
      ids_or_counted(std::move(step_ids), recorded.num_steps, "step_ids");
  std::vector<ReplayedPlan> plans;
  ReplayResult result;
  const auto& first = nb::cast<const Placement&>(start);
  run_interruptible([&](const std::atomic<bool>& stop) {
    ReplayConfig stoppable = config;
    stoppable.stop = &stop;
    result = replay(policy, recorded, first, stoppable,
                    [&](const ReplayedPlan& one) { plans.push_back(one); });
  });
  nb::list made;
  nb::object current = nb::borrow(start);
  for (ReplayedPlan& one : plans) {
    const StepRange of_window{one.number * window, (one.number + 1) * window};
    Planned planned{std::move(one.plan),
                    nb::cast(steps_of(recorded, of_window)),
                    current,
                    std::string(policy.name()),
                    one.seconds,
                    config.topology.node_of_rank,
                    layers,
                    {steps.begin() + of_window.first, steps.begin() + of_window.last}};
    made.append(nb::cast(std::move(planned)));
    current = made[nb::len(made) - 1].attr("placement");
  }
  nb::dict figures;
  figures["par_next_mean"] = result.par_next_mean;
  figures["par_next_worst"] = result.par_next_worst;
  figures["first_plan_moves"] = result.first_plan_moves;
  figures["moves_per_layer_per_replan"] = result.moves_per_layer_per_replan;
  figures["plan_seconds_per_replan"] = result.plan_seconds_per_replan;
  if (settings.cost != nullptr) {
    figures["par_time_next_mean"] = result.par_time_next_mean;
    figures["step_seconds_next_mean"] = result.step_seconds_next_mean;
  }
  return nb::make_tuple(figures, made);
}

std::string page_of(const Planned& planned, const std::optional<std::string>& title) {
  const auto& load = nb::cast<const Load&>(planned.load);
  const auto& current = nb::cast<const Placement&>(planned.current);
  const nb::gil_scoped_release release;
  Report report = plan_report(
      {load, current, planned.plan, planned.layer_ids, planned.step_ids, planned.node_of_rank});
  report.title = title.value_or("Plan");
  report.made_by = cat("trimtab ", TRIMTAB_VERSION, " in Python");
  report.facts = {{"Policy", planned.policy},
                  {"Steps", std::to_string(load.num_steps)},
                  {"Layers", cat(load.num_layers, " of ", load.num_experts, " experts")},
                  {"Ranks", cat(current.num_ranks(), " with ", current.num_slots(), " slots")}};
  return report_html(report);
}

std::string text_of(const Planned& planned) {
  const Plan& plan = planned.plan;
  std::ostringstream out;
  out.precision(4);
  out << std::fixed << "Plan of " << planned.policy << " for " << plan.layers.size()
      << " layers: PAR of a step " << plan.mean(&LayerPrediction::par_step_before) << " -> "
      << plan.mean(&LayerPrediction::par_step_after) << ", of the window "
      << plan.mean(&LayerPrediction::par_before) << " -> " << plan.mean(&LayerPrediction::par_after)
      << " (bound " << plan.mean(&LayerPrediction::bound_equal) << "), " << plan.moves.size()
      << " moves, " << planned.seconds << " s";
  return out.str();
}

// [layers]: one number of each layer's prediction.
template <double LayerPrediction::* kValue>
nb::object predictions(nb::handle self) {
  const std::vector<LayerPrediction>& layers = nb::cast<const Planned&>(self).plan.layers;
  constexpr int64_t kStride = sizeof(LayerPrediction) / sizeof(double);
  return view(layers.empty() ? nullptr : &(layers[0].*kValue), {layers.size()}, self, {kStride});
}

void bind_plan(nb::module_& m) {
  nb::class_<History>(
      m, "History",
      "Earlier loads, condensed: what plan(..., history=) takes from the plan before.")
      .def_ro("steps_seen", &History::steps_seen)
      .def_ro("episodes", &History::episodes, "Load [episodes, layers, experts]")
      .def_ro("weights", &History::weights, "[episodes], steps halved with age; newest last");

  nb::class_<Planned>(
      m, "Plan",
      R"(A placement, what it costs and what it is worth, as predicted on the loads it was made
from.

PAR is the peak-to-average rank load, 1.0 is level; tokens shared out over replicas as `split` says.
All arrays are read-only views, no copies; those of PAR are float64 [layers].)")
      .def_prop_ro(
          "placement", [](const Planned& p) -> const Placement& { return p.plan.placement; },
          nb::rv_policy::reference_internal)
      .def_prop_ro(
          "current", [](const Planned& p) { return p.current; }, "The placement it starts from.",
          nb::sig("def current(self) -> Placement"))
      .def_prop_ro(
          "load", [](const Planned& p) { return p.load; }, "The loads it was made from.",
          nb::sig("def load(self) -> Load"))
      .def_prop_ro("policy", [](const Planned& p) { return p.policy; })
      .def_prop_ro(
          "seconds", [](const Planned& p) { return p.seconds; }, "Of planning alone.")
      .def_prop_ro(
          "moves",
          [](nb::handle self) {
            const std::vector<Move>& moves = nb::cast<const Planned&>(self).plan.moves;
            constexpr int64_t kStride = sizeof(Move) / sizeof(int32_t);
            return view(moves.empty() ? nullptr : &moves[0].layer, {moves.size(), 3}, self,
                        {kStride, 1});
          },
          "int32 [moves, 3]: layer, slot, expert of each weight that a rank must receive; by "
          "layer, then slot.",
          nb::sig("def moves(self) -> numpy.typing.NDArray[numpy.int32]"))
      .def_prop_ro(
          "receive_peak",
          [](nb::handle self) {
            const std::vector<int64_t>& peak = nb::cast<const Planned&>(self).plan.receive_peak;
            return view(peak.data(), {peak.size()}, self);
          },
          "int64 [layers]: the most experts that one rank receives.",
          nb::sig("def receive_peak(self) -> numpy.typing.NDArray[numpy.int64]"))
      .def_prop_ro(
          "duplicates",
          [](nb::handle self) {
            const std::vector<int64_t>& duplicates = nb::cast<const Planned&>(self).plan.duplicates;
            return view(duplicates.data(), {duplicates.size()}, self);
          },
          "int64 [layers]: slots whose expert a lower slot of their rank holds.",
          nb::sig("def duplicates(self) -> numpy.typing.NDArray[numpy.int64]"))
      .def_prop_ro(
          "bytes", [](const Planned& p) { return p.plan.bytes; }, "moves x expert_bytes")
      .def_prop_ro(
          "history", [](const Planned& p) -> const History& { return p.plan.history; },
          nb::rv_policy::reference_internal,
          "For the next plan's history=; empty for policies that remember nothing.")
      .def_prop_ro(
          "layer_ids", [](const Planned& p) { return p.layer_ids; },
          "[layers]: the engine's numbers")
#define TRIMTAB_PREDICTION(name, doc)                            \
  .def_prop_ro(#name, &predictions<&LayerPrediction::name>, doc, \
               nb::sig("def " #name "(self) -> numpy.typing.NDArray[numpy.float64]"))
          TRIMTAB_PREDICTION(par_before, "Of the loads summed over the window, before.")
              TRIMTAB_PREDICTION(par_after, "Of the loads summed over the window, after.")
                  TRIMTAB_PREDICTION(par_step_before,
                                     "Mean over the steps of the step's PAR, before.")
                      TRIMTAB_PREDICTION(par_step_after,
                                         "Mean over the steps of the step's PAR, after.")
                          TRIMTAB_PREDICTION(par_step_after_high,
                                             "Upper end of a 95 % interval of par_step_after.")
                              TRIMTAB_PREDICTION(bound_equal,
                                                 "Proved: no placement with these slots in which "
                                                 "no rank holds an expert "
                                                 "twice has a lower par_after.")
                                  TRIMTAB_PREDICTION(bound_exact,
                                                     "Proved: no placement with these slots at all "
                                                     "has a lower par_after, where tokens may be "
                                                     "split over replicas in any parts.")
                                      TRIMTAB_PREDICTION(
                                          par_time_before,
                                          "Mean PAR of a step in time, before; 0 without cost.")
                                          TRIMTAB_PREDICTION(par_time_after,
                                                             "Mean PAR of a step in time, after.")
                                              TRIMTAB_PREDICTION(
                                                  step_seconds_before,
                                                  "Time of a step's busiest rank, mean over the "
                                                  "steps, before; 0 without cost.")
                                                  TRIMTAB_PREDICTION(
                                                      step_seconds_after,
                                                      "Time of a step's busiest rank, after.")
#undef TRIMTAB_PREDICTION
      .def(
          "write",
          [](const Planned& p, const std::filesystem::path& path, const std::string& format) {
            write_placement(path.string(), {p.plan.placement, p.layer_ids, {{"policy", p.policy}}},
                            file_format(format));
          },
          nb::arg("path"), nb::arg("format") = "json", R"(Writes the placement for an engine.

format: json, npy, sglang, trtllm, vllm or vllm-ascend (docs/formats.md). Replaces the file when
complete. Raises ValueError for formats without placements, RuntimeError when it can't be
written.)",
          nb::sig("def write(self, path: os.PathLike | str, format: str = 'json') -> None"))
      .def("report_html", &page_of, nb::arg("title") = nb::none(),
           "The report as one HTML page that needs nothing else; docs/planning.md says how to read "
           "it.")
      .def(
          "show",
          [](const nb::object& self) {
            return nb::module_::import_("trimtab.page").attr("Page")(self.attr("report_html")());
          },
          "The report, for a notebook to draw.", nb::sig("def show(self) -> trimtab.page.Page"))
      .def("__repr__", &text_of);
}

#define TRIMTAB_SETTINGS                                                                         \
  "split: str = 'equal', cost: CostModel | None = None, "                                        \
  "node_of_rank: collections.abc.Sequence[int] | None = None, num_groups: int = 1, "             \
  "node_rules: collections.abc.Sequence[str] = (), expert_bytes: int = 0, max_moves_per_layer: " \
  "int | None = None, max_bytes: int | None = "                                                  \
  "None, max_layers: int | None = None, max_receive_per_rank: int | None = None"
#define TRIMTAB_NUMBERS                                        \
  ", layer_ids: collections.abc.Sequence[int] | None = None, " \
  "step_ids: collections.abc.Sequence[int] | None = None"

void bind_policy_class(nb::module_& m) {
  nb::class_<Policy>(m, "Policy",
                     R"(A way to plan: pure and deterministic, so that all ranks get the same plan.

name: see policy_names(). preset: of trim: fast, balanced, deep. time_budget_s: of trim; the plan
then depends on the machine. move_price: of trim: PAR that a move must gain its layer. keep_slots:
of deepseek. seed: of random. Raises ValueError with the names for one that is none of them, and for
an option that the policy does not have.)")
      .def_prop_ro("name", [](const Policy& policy) { return std::string(policy.name()); })
      .def(
          "rebalance",
          [](const Policy& policy, nb::handle_t<Load> load, nb::handle_t<Placement> current,
             const std::string& split, const CostModel* cost,
             std::optional<std::vector<int32_t>> node_of_rank, int num_groups,
             std::vector<std::string> node_rules, int64_t expert_bytes,
             std::optional<int64_t> max_moves_per_layer, std::optional<int64_t> max_bytes,
             std::optional<int64_t> max_layers, std::optional<int64_t> max_receive_per_rank,
             const History* history, std::optional<std::vector<int>> layer_ids,
             std::optional<std::vector<int64_t>> step_ids) {
            return rebalance(
                policy, load, current,
                {split, cost, std::move(node_of_rank), num_groups, std::move(node_rules),
                 expert_bytes, max_moves_per_layer, max_bytes, max_layers, max_receive_per_rank},
                history, std::move(layer_ids), std::move(step_ids));
          },
          nb::arg("load"), nb::arg("current"), nb::kw_only(), nb::arg("split") = "equal",
          nb::arg("cost") = nb::none(), nb::arg("node_of_rank") = nb::none(),
          nb::arg("num_groups") = 1, nb::arg("node_rules") = std::vector<std::string>(),
          nb::arg("expert_bytes") = 0, nb::arg("max_moves_per_layer") = nb::none(),
          nb::arg("max_bytes") = nb::none(), nb::arg("max_layers") = nb::none(),
          nb::arg("max_receive_per_rank") = nb::none(), nb::arg("history") = nb::none(),
          nb::arg("layer_ids") = nb::none(), nb::arg("step_ids") = nb::none(),
          R"(A plan for these loads from this placement, within these limits.

split: the rule that will share tokens out over replicas: equal (each gets the same part, fractions
included), static, round_robin, split or time. cost: what rows cost; time needs it, and with it the
steps must be single ones. node_of_rank: [ranks]; all on one when left out. num_groups: expert
groups of the router, for deepseek and the rule groups. node_rules: what every layer keeps to on
several nodes: groups, even, all (trimtab.plan() says what they mean). expert_bytes: of one expert's
weights, which max_bytes needs. max_...: limits; one that is reached stops further moves. history:
of the last plan; load then holds only the steps since. layer_ids [layers], step_ids [steps]: the
engine's numbers. The GIL is released, and Ctrl-C ends the call. Raises ValueError when sizes do not
fit each other.)",
          nb::sig("def rebalance(self, load: Load, current: Placement, *, " TRIMTAB_SETTINGS
                  ", history: History | None = None" TRIMTAB_NUMBERS ") -> Plan"))
      .def(
          "replay",
          [](const Policy& policy, nb::handle_t<Load> load, nb::handle_t<Placement> current,
             int64_t window, const std::string& split, const CostModel* cost,
             std::optional<std::vector<int32_t>> node_of_rank, int num_groups,
             std::vector<std::string> node_rules, int64_t expert_bytes,
             std::optional<int64_t> max_moves_per_layer, std::optional<int64_t> max_bytes,
             std::optional<int64_t> max_layers, std::optional<int64_t> max_receive_per_rank,
             std::optional<std::vector<int>> layer_ids,
             std::optional<std::vector<int64_t>> step_ids) {
            return replay_policy(
                policy, load, current, window,
                {split, cost, std::move(node_of_rank), num_groups, std::move(node_rules),
                 expert_bytes, max_moves_per_layer, max_bytes, max_layers, max_receive_per_rank},
                std::move(layer_ids), std::move(step_ids));
          },
          nb::arg("load"), nb::arg("current"), nb::kw_only(), nb::arg("window"),
          nb::arg("split") = "equal", nb::arg("cost") = nb::none(),
          nb::arg("node_of_rank") = nb::none(), nb::arg("num_groups") = 1,
          nb::arg("node_rules") = std::vector<std::string>(), nb::arg("expert_bytes") = 0,
          nb::arg("max_moves_per_layer") = nb::none(), nb::arg("max_bytes") = nb::none(),
          nb::arg("max_layers") = nb::none(), nb::arg("max_receive_per_rank") = nb::none(),
          nb::arg("layer_ids") = nb::none(), nb::arg("step_ids") = nb::none(),
          R"(Plans on each window of steps and measures the plan on the window after it.

Every plan starts from the one before, with its history. window: steps. The rest as in rebalance():
plans are made for `split`, and windows are measured with it. Returns the figures of `trimtab replay
--json` by name, and the plans. The GIL is released, and Ctrl-C ends the call. Raises ValueError as
rebalance(), and when two windows do not fit.)",
          nb::sig("def replay(self, load: Load, current: Placement, *, window: "
                  "int, " TRIMTAB_SETTINGS TRIMTAB_NUMBERS
                  ") -> tuple[dict[str, float], list[Plan]]"));
  m.def(
      "make_policy",
      [](const std::string& name, const std::optional<std::string>& preset,
         std::optional<double> time_budget_s, bool keep_slots, std::optional<double> move_price,
         uint64_t seed) {
        return make_policy(name, {.preset = preset.value_or(""),
                                  .time_budget_s = time_budget_s,
                                  .move_price = move_price,
                                  .keep_slots = keep_slots,
                                  .seed = seed})
            .release();
      },
      nb::rv_policy::take_ownership, nb::arg("name"), nb::kw_only(), nb::arg("preset") = nb::none(),
      nb::arg("time_budget_s") = nb::none(), nb::arg("keep_slots") = true,
      nb::arg("move_price") = nb::none(), nb::arg("seed") = 0,
      "The policy of this name; see Policy for the options.");
  m.def("default_window", &default_window, nb::arg("load"),
        "Steps of a window for those who name none: an eighth of all, at least one.");
  m.def(
      "policy_names",
      [] {
        std::vector<std::string> names;
        for (const std::string_view name : policy_names()) names.emplace_back(name);
        return names;
      },
      "trim and those it is compared with.");
}

}  // namespace

void bind_policy(nb::module_& m) {
  bind_plan(m);
  bind_policy_class(m);
  m.def(
      "even_nodes",
      [](int num_ranks, int num_nodes) {
        return Topology::even(num_ranks, num_nodes).node_of_rank;
      },
      nb::arg("num_ranks"), nb::arg("num_nodes"),
      "node_of_rank [ranks] of ranks numbered node by node, equally many on each. Raises "
      "ValueError when nodes do "
      "not divide ranks.");
}

}  // namespace trimtab::python
