// SPDX-License-Identifier: Apache-2.0
#include "trimtab/layout.h"

#include <nanobind/stl/string.h>

#include <string>

#include "base/cat.h"
#include "bindings.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

using namespace nb::literals;

ParallelLayout make_layout(int tp, int dp, bool ep, int pcp, bool sp) {
  const ParallelLayout layout{.tp = tp, .dp = dp, .ep = ep, .pcp = pcp, .sp = sp};
  int ranks = 0;
  if (tp < 1 || dp < 1 || pcp < 1 || __builtin_mul_overflow(tp, dp, &ranks) ||
      __builtin_mul_overflow(ranks, pcp, &ranks)) {
    throw InvalidArgument(cat("layout: tp ", tp, ", dp ", dp, ", pcp ", pcp,
                              "; each must be at least 1, and their product a number of ranks"));
  }
  check_layout(layout, ranks);
  return layout;
}

std::string repr(const ParallelLayout& layout) {
  const auto flag = [](bool on) { return on ? "True" : "False"; };
  return cat("ParallelLayout(tp=", layout.tp, ", dp=", layout.dp, ", ep=", flag(layout.ep),
             ", pcp=", layout.pcp, ", sp=", flag(layout.sp), ")");
}

}  // namespace

void bind_layout(nb::module_& m) {
  nb::class_<ParallelLayout>(m, "ParallelLayout",
                             R"(Which ranks have the same tokens, and which hold parts of experts.

Ranks are numbered with tensor-parallel neighbours side by side, then context-parallel groups, then
data-parallel ones. docs/layouts.md says what each layout does in a MoE layer.)")
      .def(nb::new_(&make_layout), nb::kw_only(), "tp"_a = 1, "dp"_a = 1, "ep"_a = true,
           "pcp"_a = 1, "sp"_a = true,
           R"(tp: ranks of a tensor-parallel group, which have the same tokens.
dp: groups with tokens of their own. pcp: tensor-parallel groups that have the same tokens.
ep: whole experts, spread over all ranks; False: each rank of a tp group holds a part of every one.
sp: with ep, ranks that have the same tokens take slices of them; False: each takes all, and the
outputs are summed. ValueError for values that can't be.)")
      .def_prop_ro("tp", [](const ParallelLayout& layout) { return layout.tp; })
      .def_prop_ro("dp", [](const ParallelLayout& layout) { return layout.dp; })
      .def_prop_ro("ep", [](const ParallelLayout& layout) { return layout.ep; })
      .def_prop_ro("pcp", [](const ParallelLayout& layout) { return layout.pcp; })
      .def_prop_ro("sp", [](const ParallelLayout& layout) { return layout.sp; })
      .def_prop_ro("ranks", &ParallelLayout::ranks, "tp * dp * pcp")
      .def_prop_ro("expert_parts", &ParallelLayout::expert_parts,
                   "The parts that each expert is cut into: tp without ep, else 1.")
      .def("__eq__",
           [](const ParallelLayout& a, const nb::object& b) {
             return nb::isinstance<ParallelLayout>(b) && a == nb::cast<ParallelLayout>(b);
           })
      .def("__hash__",
           [](const ParallelLayout& layout) { return nb::hash(nb::str(repr(layout).c_str())); })
      .def("__repr__", &repr)
      .def("__str__", [](const ParallelLayout& layout) { return name(layout); });
}

}  // namespace trimtab::python
