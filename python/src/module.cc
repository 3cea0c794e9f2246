// SPDX-License-Identifier: Apache-2.0
#include "bindings.h"

NB_MODULE(_core, m) {
  using namespace trimtab::python;
  nanobind::set_leak_warnings(
      false);  // what modules still hold when the interpreter ends is no leak
  m.doc() = "Trimtab's C++ library; use it through the package trimtab.";
  m.attr("version") = TRIMTAB_VERSION;
  bind_errors(m);
  bind_load(m);
  bind_cost(m);
  bind_policy(m);
  bind_formats(m);
  bind_split(m);
  bind_router(m);
  bind_layout(m);
  bind_runtime(m);
  bind_runtime_balancer(m);
  bind_rank_runtime(m);
}
