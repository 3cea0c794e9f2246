// SPDX-License-Identifier: Apache-2.0
// Sharing a batch's tokens out over replicas.
#include "trimtab/split.h"

#include <nanobind/stl/string.h>

#include <string>

#include "base/cat.h"
#include "numbers.h"
#include "planning.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

using Int32Array = nb::ndarray<int32_t, nb::c_contig, nb::device::cpu>;

std::span<int32_t> span_of(const Int32Array& array) {
  return {array.data(), array.size()};
}

nb::object split(const SplitTable& table, const nb::object& counts, const std::string& rule_name,
                 const CostModel* cost) {
  const SplitRule rule = parse_split_rule(rule_name);
  const std::vector<int32_t> tokens = small_numbers(counts, "counts");
  const auto ranks = static_cast<size_t>(table.num_ranks),
             slots = static_cast<size_t>(table.num_slots);
  std::vector<int32_t> shares(ranks * slots);
  {
    const nb::gil_scoped_release release;
    Workspace workspace(split_workspace_bytes(table));
    split_tokens(rule, table, tokens, workspace, shares, cost);
  }
  return array_of(std::move(shares), {ranks, slots});
}

}  // namespace

void bind_split(nb::module_& m) {
  nb::class_<SplitTable>(m, "SplitTable",
                         R"(The replicas of one layer, laid out for sharing tokens out; read-only.

node_of_rank: int array [ranks]; all on one node when left out. Raises ValueError when sizes do not
fit.)")
      .def(
          "__init__",
          [](SplitTable* self, const Placement& placement, int layer,
             const nb::object& node_of_rank) {
            const std::vector<int32_t> nodes = node_of_rank.is_none()
                                                   ? std::vector<int32_t>{}
                                                   : small_numbers(node_of_rank, "node_of_rank");
            new (self) SplitTable(placement, layer, nodes);
          },
          nb::arg("placement"), nb::arg("layer"), nb::arg("node_of_rank") = nb::none(),
          nb::sig("def __init__(self, placement: Placement, layer: int, node_of_rank: "
                  "numpy.typing.ArrayLike | None = "
                  "None) -> None"))
      .def_ro("num_ranks", &SplitTable::num_ranks)
      .def_ro("num_experts", &SplitTable::num_experts)
      .def_ro("num_slots", &SplitTable::num_slots)
      .def("split", &split, nb::arg("counts"), nb::arg("rule") = "split",
           nb::arg("cost") = nb::none(),
           R"(How many tokens go to each replica.

counts: int [ranks, experts], tokens of each source rank for each expert. rule: static (one replica
for each source rank), round_robin (replicas get equally many), split (the peak rank load is as low
as whole tokens allow; then most stay on their rank, then node), time (the busiest rank is done as
early as a search finds by cost: CostModel, which time needs). Returns int32 [ranks, slots]:
tokens of each source rank that go to each slot. Raises ValueError for negative counts, sizes that
do not fit and unknown rules.)",
           nb::sig("def split(self, counts: numpy.typing.ArrayLike, rule: str = 'split', cost: "
                   "CostModel | None = None) -> numpy.typing.NDArray[numpy.int32]"))
      .def(
          "assign_slots",
          [](const SplitTable& table, const Int32Array& share_row, const Int32Array& ids) {
            assign_slots(table, span_of(share_row), span_of(ids));
          },
          nb::arg("share_row").noconvert(), nb::arg("ids").noconvert(),
          R"(Turns one source rank's expert ids into slots, in place.

share_row: int32 [slots], that rank's row of split(), used up. ids: int32, any shape, in the order
of the tokens; -1 stays. Both are changed where they are: contiguous numpy arrays or CPU tensors.
Raises ValueError when an id is out of range or has no share left.)")
      .def(
          "rank_loads",
          [](const SplitTable& table, const nb::object& shares) {
            std::vector<int64_t> loads(table.num_ranks);
            split_rank_loads(table, small_numbers(shares, "shares"), loads);
            const size_t ranks = loads.size();
            return array_of(std::move(loads), {ranks});
          },
          nb::arg("shares"),
          "int64 [ranks]: the tokens that each rank receives under shares, as split() returns "
          "them.",
          nb::sig("def rank_loads(self, shares: numpy.typing.ArrayLike) -> "
                  "numpy.typing.NDArray[numpy.int64]"))
      .def(
          "rank_seconds",
          [](const SplitTable& table, const nb::object& shares, const CostModel& cost) {
            check_cost(SplitRule::kTime, table, &cost);
            std::vector<int64_t> times(table.num_ranks);
            split_rank_times(table, small_numbers(shares, "shares"), cost, times);
            std::vector<double> seconds;
            for (const int64_t time : times) seconds.push_back(1e-12 * static_cast<double>(time));
            const size_t ranks = seconds.size();
            return array_of(std::move(seconds), {ranks});
          },
          nb::arg("shares"), nb::arg("cost"),
          "float64 [ranks]: what each rank takes for them by a cost model.",
          nb::sig("def rank_seconds(self, shares: numpy.typing.ArrayLike, cost: CostModel) -> "
                  "numpy.typing.NDArray[numpy.float64]"));
}

}  // namespace trimtab::python
