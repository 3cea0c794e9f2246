// SPDX-License-Identifier: Apache-2.0
// What experts cost, and files of measured costs.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <filesystem>

#include "base/cat.h"
#include "bindings.h"
#include "trimtab/cost_file.h"
#include "trimtab/cost_model.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

std::vector<int64_t> values_of(std::span<const CostPoint> points, int64_t CostPoint::* value) {
  std::vector<int64_t> values;
  for (const CostPoint& point : points) values.push_back(point.*value);
  return values;
}

CostModel model_of(const std::vector<int64_t>& rows, const std::vector<double>& seconds,
                   const std::vector<double>& speeds, double wire_seconds) {
  const CostModel measured = cost_of_measured(rows, seconds);
  std::vector<int32_t> thousandths;
  for (const double speed : speeds) {
    if (!(speed > 0 && speed < 1e6)) throw InvalidArgument(cat("a rank has speed ", speed));
    thousandths.push_back(static_cast<int32_t>(std::lround(speed * CostModel::kNominalSpeed)));
  }
  if (!(wire_seconds >= 0 && wire_seconds < 1))
    throw InvalidArgument(cat("a row from another rank costs ", wire_seconds, " s"));
  const auto points = measured.points();
  return CostModel({points.begin(), points.end()}, std::move(thousandths),
                   std::llround(wire_seconds * 1e12));
}

}  // namespace

void bind_cost(nb::module_& m) {
  nb::class_<CostModel>(m, "CostModel",
                        R"(What an expert takes for a number of rows; read-only.

rows: ascending from 1, seconds: what an expert with so many rows took. Linear between them, and
behind the last as between the last two. speeds: of each rank, 1.0 that of the machine that was
measured; all 1.0 when left out. wire_seconds: what a row costs more that comes from another rank.
Raises ValueError, with the values.)")
      .def(
          "__init__",
          [](CostModel* self, const std::vector<int64_t>& rows, const std::vector<double>& seconds,
             const std::vector<double>& speeds, double wire_seconds) {
            new (self) CostModel(model_of(rows, seconds, speeds, wire_seconds));
          },
          nb::arg("rows"), nb::arg("seconds"), nb::kw_only(),
          nb::arg("speeds") = std::vector<double>(), nb::arg("wire_seconds") = 0.0,
          nb::sig("def __init__(self, rows: collections.abc.Sequence[int], seconds: "
                  "collections.abc.Sequence[float], *, speeds: collections.abc.Sequence[float] = "
                  "(), wire_seconds: float = 0.0) -> None"))
      .def_static("of_rows", &CostModel::of_rows,
                  "A row costs the same whatever it meets: times are rows.")
      .def(
          "seconds",
          [](const CostModel& cost, int64_t rows) {
            if (rows < 0) throw InvalidArgument(cat(rows, " rows"));
            return 1e-12 * static_cast<double>(cost.time(rows));
          },
          nb::arg("rows"), "What an expert with so many rows takes at speed 1.0.")
      .def_prop_ro("is_proportional", &CostModel::is_proportional,
                   "Do n rows cost n times what one does, on every rank?")
      .def_prop_ro(
          "rows", [](const CostModel& cost) { return values_of(cost.points(), &CostPoint::rows); },
          "[points] that were measured")
      .def("__repr__", [](const CostModel& cost) {
        return cat("CostModel(", cost.points().size(), " points from ", cost.points().front().rows,
                   " to ", cost.points().back().rows, " rows)");
      });
  nb::class_<MeasuredCost>(m, "MeasuredCost", "A cost model and how it was measured.")
      .def_ro("shape", &MeasuredCost::shape, "the model's name")
      .def_ro("hidden", &MeasuredCost::hidden)
      .def_ro("intermediate", &MeasuredCost::intermediate)
      .def_ro("weights", &MeasuredCost::weights, "the weights' format")
      .def_ro("isa", &MeasuredCost::isa)
      .def_ro("threads", &MeasuredCost::threads)
      .def_prop_ro(
          "cost", [](const MeasuredCost& one) -> const CostModel& { return one.cost; },
          nb::rv_policy::reference_internal);
  m.def(
      "read_costs", [](const std::filesystem::path& path) { return read_costs(path.string()); },
      nb::arg("path"),
      R"(The costs in a file that `trimtab bench experts --cost-out` wrote.

Raises FormatError with the place where the file is not what docs/formats.md says.)",
      nb::sig("def read_costs(path: os.PathLike | str) -> list[MeasuredCost]"));
}

}  // namespace trimtab::python
