// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_nodes_options.h"

#include "bench/experts/model_shape.h"
#include "bench/experts/weight_dtype.h"
#include "cli/bench/bench_nodes.h"
#include "cli/bench/bench_options.h"

namespace trimtab::cli {

namespace {

constexpr const char* kMachineFooter = R"(
What it does. Says what the machine is made of, as far as this process may use it (affinity, cpuset
and quota count): packages, memory nodes, cores, hardware threads, caches; by hwloc, without which
it is one node. Then the cores of every memory node read cold memory of every node, with a thread on
each core: the stream, local and remote.

--json: {cpu, by_hwloc, packages, cores, hardware_threads, l3_caches, l3_bytes, isa, nodes: [...],
streams: [...]}; docs/bench.md has the keys.

Exit status: 0 done, 1 it failed, 2 wrong usage.
)";

constexpr const char* kSocketsFooter = R"(
What it does. Times the experts of one layer with random weights, on all cores of one memory node
and of all nodes, with the weights laid out in several ways, and prints a table that can be posted:

  one node                  its cores, its memory
  all, memory of the first  all cores, as a program does that reads its weights with one thread
  all, interleaved          all cores, pages of all nodes in turn (numactl --interleave)
  all, sliced               each node has a part of every expert in its own memory; the outputs are
                            summed

Mirrored weights are read as sliced ones are, each part from its node's own memory, and take as much
memory again on every node. trimtab run itself does not place weights by node: this says what that
would bring on this machine.

Exit status: 0 done, 1 it failed, 2 wrong usage.

Examples
  trimtab bench sockets
  trimtab bench sockets --shape deepseek-v3 --dtype w4a8 --tokens 1,16
)";

void add_common(Command& command, BenchNodesOptions& options) {
  command
      .number("--pretend-nodes", options.pretend_nodes,
              "Cut the cores into so many nodes, whose memory is that of the first: to try it out")
      .between(1, 64);
  command.number("--seconds", options.seconds, "For each row of the result, and at least 5 rounds")
      .between_reals(0.0, 3600.0)
      .type("S")
      .shows_default();
  add_cold_memory(command, options.cold_mb);
  command.flag("--json", options.json, "One JSON object on standard output instead of text");
}

}  // namespace

void add_bench_nodes(Command& bench, BenchNodesOptions& options) {
  Command machine =
      bench.add("machine", "Say what the machine is made of, and what its memory gives");
  add_common(machine, options);
  machine.footer(kMachineFooter);
  machine.runs([&options] { bench_machine(options); });

  Command sockets = bench.add("sockets", "Time experts on one memory node and on all");
  sockets.text("--shape", options.shape, "A model, as of bench experts")
      .parsed_by([](const std::string& text) { bench::parse_model(text); })
      .type("NAME")
      .shows_default();
  sockets.list("--dtype", options.dtypes, "Formats of the weights, as of bench experts")
      .parsed_by([](const std::string& text) { bench::find_weight_dtype(text); })
      .type("NAME,...")
      .shows_default();
  sockets.list("--tokens", options.tokens, "Tokens of the layer")
      .between(1, 1 << 16)
      .type("N,...")
      .shows_default();
  add_common(sockets, options);
  sockets.footer(kSocketsFooter);
  sockets.runs([&options] { bench_sockets(options); });
}

}  // namespace trimtab::cli
