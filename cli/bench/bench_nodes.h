// SPDX-License-Identifier: Apache-2.0
// `trimtab bench machine` says what the machine is made of and what its memory gives; `trimtab
// bench sockets` times a layer with its weights on one memory node and on all.
#pragma once

#include "cli/bench/bench_nodes_options.h"

namespace trimtab::cli {

// Both write to standard output and progress to standard error. They throw Error.
void bench_machine(const BenchNodesOptions& options);
void bench_sockets(const BenchNodesOptions& options);

}  // namespace trimtab::cli
