// SPDX-License-Identifier: Apache-2.0
// The parts of trimtab._core, one a file: each adds its classes and functions to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace trimtab::python {

namespace nb = nanobind;

void bind_errors(nb::module_& m);
void bind_load(nb::module_& m);
void bind_cost(nb::module_& m);
void bind_policy(nb::module_& m);
void bind_formats(nb::module_& m);
void bind_split(nb::module_& m);
void bind_router(nb::module_& m);
void bind_layout(nb::module_& m);
void bind_runtime(nb::module_& m);
void bind_runtime_balancer(nb::module_& m);
void bind_rank_runtime(nb::module_& m);

}  // namespace trimtab::python
