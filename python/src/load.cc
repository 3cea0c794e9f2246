// SPDX-License-Identifier: Apache-2.0
// Load and Placement: what experts got, and where they are.
#include "trimtab/load.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/cat.h"
#include "numbers.h"
#include "planning.h"
#include "trimtab/error.h"
#include "trimtab/par.h"
#include "trimtab/placement.h"
#include "trimtab/policy.h"
#include "trimtab/report.h"

namespace trimtab::python {
namespace {

constexpr int64_t kMostInt = std::numeric_limits<int32_t>::max();

int dimension(size_t size, const char* what) {
  if (size > static_cast<size_t>(kMostInt)) throw InvalidArgument(cat(size, " ", what));
  return static_cast<int>(size);
}

Placement placement_of(nb::handle logical, std::optional<int> num_experts,
                       std::optional<int> num_ranks, std::optional<std::vector<int>> slots_per_rank,
                       uint64_t version) {
  const WholeNumbers numbers = whole_numbers(logical, "logical", 0, kMostInt);
  if (numbers.shape.size() != 2) {
    throw InvalidArgument(
        cat("logical has ", numbers.shape.size(), " dimensions, not [layers, slots]"));
  }
  const int layers = dimension(numbers.shape[0], "layers"),
            slots = dimension(numbers.shape[1], "slots");
  std::vector<int32_t> ids;
  ids.reserve(numbers.values.size());
  int32_t most = -1;
  for (const int64_t id : numbers.values) {
    ids.push_back(static_cast<int32_t>(id));
    most = std::max(most, ids.back());
  }
  if (num_ranks.has_value() == slots_per_rank.has_value()) {
    throw InvalidArgument("give num_ranks (with equally many slots each) or slots_per_rank");
  }
  if (num_ranks) {
    if (*num_ranks < 1 || slots % *num_ranks != 0) {
      throw InvalidArgument(
          cat(slots, " slots are not equally many on ", *num_ranks, " ranks; give slots_per_rank"));
    }
    slots_per_rank.emplace(cells(*num_ranks), slots / *num_ranks);
  }
  if (most == kMostInt && !num_experts) throw InvalidArgument(cat("logical has expert ", most));
  return {layers, num_experts.value_or(most + 1), std::move(*slots_per_rank), std::move(ids),
          version};
}

void bind_load_class(nb::module_& m) {
  nb::class_<Load>(m, "Load", R"(Tokens per expert, by step and layer.

counts: int array [steps, layers, experts] or [layers, experts] (one step), from numpy, torch (CPU),
JAX or lists; floats that are whole numbers will do. Copied once, as int64. Raises ValueError, with
the place, for negative or broken numbers.)")
      .def(
          "__init__",
          [](Load* self, const nb::object& counts) { new (self) Load(load_of(counts)); },
          nb::arg("counts"), nb::sig("def __init__(self, counts: numpy.typing.ArrayLike) -> None"))
      .def_ro("num_steps", &Load::num_steps)
      .def_ro("num_layers", &Load::num_layers)
      .def_ro("num_experts", &Load::num_experts)
      .def_prop_ro(
          "counts",
          [](nb::handle self) {
            const auto& load = nb::cast<const Load&>(self);
            return view(load.counts.data(),
                        {cells(load.num_steps), cells(load.num_layers), cells(load.num_experts)},
                        self);
          },
          "int64 [steps, layers, experts]: a read-only view, no copy.",
          nb::sig("def counts(self) -> numpy.typing.NDArray[numpy.int64]"))
      .def("__repr__", [](const Load& load) {
        return cat("Load(", load.num_steps, load.num_steps == 1 ? " step, " : " steps, ",
                   load.num_layers, " layers of ", load.num_experts, " experts)");
      });
  m.def(
      "par",
      [](const nb::object& rank_load) {
        return par(
            whole_numbers(rank_load, "rank_load", 0, std::numeric_limits<int64_t>::max()).values);
      },
      nb::arg("rank_load"), "max / mean of the ranks' loads [ranks]; 1.0 when nothing was routed.",
      nb::sig("def par(rank_load: numpy.typing.ArrayLike) -> float"));
  m.def(
      "noise_floor",
      [](const Load& load, int num_ranks) {
        if (num_ranks < 1)
          throw InvalidArgument(cat("num_ranks must be at least 1, not ", num_ranks));
        std::vector<double> floors;
        {
          const nb::gil_scoped_release release;
          for (int l = 0; l < load.num_layers; ++l)
            floors.push_back(noise_floor(load, l, num_ranks));
        }
        const size_t layers = floors.size();
        return array_of(std::move(floors), {layers});
      },
      nb::arg("load"), nb::arg("num_ranks"),
      R"(The mean step PAR that chance alone leaves when all ranks expect the same.

Mean over the steps of E[max] / mean of as many independent Poisson counts as there are ranks,
float64 [layers].)",
      nb::sig(
          "def noise_floor(load: Load, num_ranks: int) -> numpy.typing.NDArray[numpy.float64]"));
  m.def(
      "is_worth_planning",
      [](const Placement& placement, const Load& load, double plan_above_par) {
        const nb::gil_scoped_release release;
        return is_worth_planning(above_chance(rank_loads(placement, load)), plan_above_par);
      },
      nb::arg("placement"), nb::arg("load"), nb::arg("plan_above_par"),
      R"(Whether a window of loads is more uneven than chance makes it.

True if its PAR, as the mean over its steps or of all of them together, is above noise_floor() by
more than plan_above_par - 1, mean over the layers, and by more than chance may well leave, which is
4 standard deviations; replicas share equally. Raises ValueError when the sizes do not fit.)",
      nb::sig("def is_worth_planning(placement: Placement, load: Load, plan_above_par: float) -> "
              "bool"));
  m.def(
      "par_per_step",
      [](const Placement& placement, const Load& load) {
        ReportSeries series;
        {
          const nb::gil_scoped_release release;
          series = report_series("", placement, load);
        }
        const size_t steps = series.par.size();
        return nb::make_tuple(array_of(std::move(series.par), {steps}),
                              array_of(std::move(series.worst), {steps}));
      },
      nb::arg("placement"), nb::arg("load"),
      R"(PAR of every step under a placement, replicas sharing equally.

Returns two float64 arrays [steps]: the mean over the layers, and the worst layer. Raises ValueError
when the load's layers or experts are not the placement's.)",
      nb::sig("def par_per_step(placement: Placement, load: Load) -> "
              "tuple[numpy.typing.NDArray[numpy.float64], numpy.typing.NDArray[numpy.float64]]"));
}

void bind_placement_class(nb::module_& m) {
  nb::class_<Placement>(
      m, "Placement",
      R"(Which logical expert each slot (physical expert) of each layer holds; immutable.

logical: int array [layers, slots of all ranks], rank by rank. num_experts: of a layer; the highest
id + 1 when left out. Give num_ranks (equally many slots each) or slots_per_rank ([ranks]). Raises
ValueError when an id is out of range or an expert of some layer has no slot.)")
      .def(
          "__init__",
          [](Placement* self, const nb::object& logical, std::optional<int> num_experts,
             std::optional<int> num_ranks, std::optional<std::vector<int>> slots_per_rank,
             uint64_t version) {
            new (self) Placement(
                placement_of(logical, num_experts, num_ranks, std::move(slots_per_rank), version));
          },
          nb::arg("logical"), nb::kw_only(), nb::arg("num_experts") = nb::none(),
          nb::arg("num_ranks") = nb::none(), nb::arg("slots_per_rank") = nb::none(),
          nb::arg("version") = 0,
          nb::sig("def __init__(self, logical: numpy.typing.ArrayLike, *, num_experts: int | None "
                  "= None, num_ranks: "
                  "int | None = None, slots_per_rank: collections.abc.Sequence[int] | None = None, "
                  "version: int = 0) "
                  "-> None"))
      .def_static("linear", &Placement::linear, nb::arg("num_layers"), nb::arg("num_experts"),
                  nb::arg("num_ranks"),
                  "Experts in order, no replicas; where ranks do not divide experts, the first "
                  "ranks hold one more.")
      .def_prop_ro("num_layers", &Placement::num_layers)
      .def_prop_ro("num_experts", &Placement::num_experts)
      .def_prop_ro("num_ranks", &Placement::num_ranks)
      .def_prop_ro("num_slots", &Placement::num_slots)
      .def_prop_ro("version", &Placement::version)
      .def_prop_ro(
          "slots_per_rank",
          [](const Placement& placement) {
            std::vector<int> slots;
            for (int rank = 0; rank < placement.num_ranks(); ++rank)
              slots.push_back(placement.slots_of_rank(rank));
            return slots;
          },
          "[ranks]")
      .def_prop_ro(
          "logical",
          [](nb::handle self) {
            const auto& placement = nb::cast<const Placement&>(self);
            const int layers = placement.num_layers();
            return view(layers > 0 ? placement.logical(0).data() : nullptr,
                        {cells(layers), cells(placement.num_slots())}, self);
          },
          "int32 [layers, slots], the logical expert in each slot: a read-only view, no copy.",
          nb::sig("def logical(self) -> numpy.typing.NDArray[numpy.int32]"))
      .def("rank_of_slot", &Placement::rank_of_slot, nb::arg("slot"))
      .def(
          "log2phy",
          [](const Placement& placement, int layer, int rank) {
            return array_of(placement.log2phy(layer, rank), {cells(placement.num_experts())});
          },
          nb::arg("layer"), nb::arg("rank"),
          R"(int32 [experts]: the slot of each expert that a rank's tokens go to.

Its own where it has one; else the expert's slots are dealt round robin to the ranks that have none.
Raises ValueError when layer or rank is out of range.)",
          nb::sig("def log2phy(self, layer: int, rank: int) -> numpy.typing.NDArray[numpy.int32]"))
      .def("__repr__", [](const Placement& placement) {
        return cat("Placement(", placement.num_layers(), " layers of ", placement.num_experts(),
                   " experts in ", placement.num_slots(), " slots on ", placement.num_ranks(),
                   " ranks)");
      });
  m.def("default_placement", &default_placement, nb::arg("num_layers"), nb::arg("num_experts"),
        nb::arg("slots_per_rank"), R"(A placement to start from when there is none.

Experts 0..E-1 in slot order, then 0..E-1 again as replicas: what vLLM and its relatives load first.
slots_per_rank: [ranks]. Raises ValueError with the smallest legal sizes when there are fewer slots
than experts.)");
}

}  // namespace

Load load_of(nb::handle counts) {
  WholeNumbers numbers = whole_numbers(counts, "counts", 0, std::numeric_limits<int64_t>::max());
  if (numbers.shape.size() == 2) numbers.shape.insert(numbers.shape.begin(), 1);
  if (numbers.shape.size() != 3) {
    throw InvalidArgument(cat("counts has ", numbers.shape.size(),
                              " dimensions, not [steps, layers, experts] or [layers, experts]"));
  }
  return {static_cast<int64_t>(numbers.shape[0]), dimension(numbers.shape[1], "layers"),
          dimension(numbers.shape[2], "experts"), std::move(numbers.values)};
}

void bind_load(nb::module_& m) {
  bind_placement_class(m);
  bind_load_class(m);
}

}  // namespace trimtab::python
