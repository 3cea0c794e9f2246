// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_nodes.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/cores.h"
#include "bench/sockets/layer_on_nodes.h"
#include "bench/sockets/node_streams.h"
#include "cli/output/line_printer.h"
#include "cli/output/output.h"
#include "trimtab/experts.h"

namespace trimtab::cli {

namespace {

using bench::NodeLayoutRow;
using bench::NodeStream;
using Json = nlohmann::ordered_json;

// "model name : AMD EPYC ..." of /proc/cpuinfo; "unknown" where there is none.
std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string kernel_name() {
  utsname name{};
  return uname(&name) == 0 ? fmt::format("{} {}", name.sysname, name.release) : "unknown";
}

struct Machine {
  MachineParts parts = machine_parts();
  Cores cores = usable_cores();
  std::vector<MemoryNode> nodes;
  bool pretended = false;

  explicit Machine(int pretend_nodes) : nodes(parts.nodes), pretended(pretend_nodes > 0) {
    if (pretended) nodes = bench::pretend_nodes(parts.nodes, pretend_nodes);
  }
};

bench::NodeEffort effort_of(const BenchNodesOptions& options) {
  return {.seconds = options.seconds, .memory = static_cast<size_t>(options.cold_mb) << 20};
}

double gb(size_t bytes) {
  return 1e-9 * static_cast<double>(bytes);
}

Json spread_json(const bench::Spread& spread) {
  return {spread.low, spread.high};
}

Json machine_json(const Machine& machine) {
  Json nodes = Json::array();
  for (const MemoryNode& node : machine.nodes) {
    nodes.push_back(
        {{"node", node.id}, {"cores", node.hardware_threads.size()}, {"bytes", node.bytes}});
  }
  return {{"cpu", cpu_name()},
          {"kernel", kernel_name()},
          {"trimtab", TRIMTAB_VERSION},
          {"by_hwloc", machine.parts.by_hwloc},
          {"packages", machine.parts.packages},
          {"cores", machine.cores.count},
          {"cores_of_machine", machine.cores.of_machine},
          {"hardware_threads", machine.parts.hardware_threads},
          {"l3_caches", machine.parts.l3_caches},
          {"l3_bytes", machine.parts.l3_bytes},
          {"isa", kernel_isa()},
          {"pretended_nodes", machine.pretended},
          {"nodes", std::move(nodes)}};
}

std::string machine_text(const Machine& machine) {
  const MachineParts& parts = machine.parts;
  std::string text = fmt::format(
      "{}, {}, trimtab {} ({})\n{} package{}, {} of {} cores, {} hardware threads", cpu_name(),
      kernel_name(), TRIMTAB_VERSION, kernel_isa(), parts.packages, parts.packages == 1 ? "" : "s",
      machine.cores.count, machine.cores.of_machine, parts.hardware_threads);
  if (parts.l3_caches > 0) {
    fmt::format_to(std::back_inserter(text), ", {} L3 cache{} of {:.0f} MB", parts.l3_caches,
                   parts.l3_caches == 1 ? "" : "s", 1e-6 * static_cast<double>(parts.l3_bytes));
  }
  text += parts.by_hwloc ? "\n" : " (without hwloc: one node, hardware threads as cores)\n";
  for (size_t n = 0; n < machine.nodes.size(); ++n) {
    const MemoryNode& node = machine.nodes[n];
    fmt::format_to(std::back_inserter(text), "node {}: {} core{}", machine.pretended ? n : node.id,
                   node.hardware_threads.size(), node.hardware_threads.size() == 1 ? "" : "s");
    if (node.bytes > 0) fmt::format_to(std::back_inserter(text), ", {:.1f} GB", gb(node.bytes));
    text += machine.pretended ? " (pretended)\n" : "\n";
  }
  return text;
}

// Rows are the nodes whose cores read, columns those whose memory is read.
std::string streams_text(const Machine& machine, const std::vector<NodeStream>& streams) {
  const size_t count = machine.nodes.size();
  const auto label = [&](size_t n) {
    return machine.pretended ? static_cast<int>(n) : machine.nodes[n].id;
  };
  std::string text =
      "\nGB/s of cold memory, cores of a node (down) reading memory of a node\n     ";
  for (size_t n = 0; n < count; ++n) fmt::format_to(std::back_inserter(text), " {:>8}", label(n));
  text += "\n";
  for (size_t cores = 0; cores < count; ++cores) {
    fmt::format_to(std::back_inserter(text), "{:5}", label(cores));
    // measure_node_streams() has the memory of a node in one piece.
    for (size_t memory = 0; memory < count; ++memory) {
      fmt::format_to(std::back_inserter(text), " {:8.1f}",
                     streams[memory * count + cores].gbytes.median);
    }
    text += "\n";
  }
  for (const NodeStream& stream : streams) {
    if (stream.pages_there < 0 || stream.pages_there == 1) continue;
    fmt::format_to(std::back_inserter(text),
                   "only {:.0f} % of the memory of node {} was there when it was read\n",
                   100 * stream.pages_there, stream.memory_of);
  }
  return text;
}

Json streams_json(const std::vector<NodeStream>& streams) {
  Json rows = Json::array();
  for (const NodeStream& stream : streams) {
    Json row = {{"cores_of", stream.cores_of},
                {"memory_of", stream.memory_of},
                {"threads", stream.threads},
                {"gbytes", stream.gbytes.median},
                {"gbytes_quartiles", spread_json(stream.gbytes)}};
    if (stream.pages_there >= 0) row["pages_there"] = stream.pages_there;
    rows.push_back(std::move(row));
  }
  return rows;
}

struct SocketRow {
  std::string dtype;
  NodeLayoutRow row;
};

// The table is in Markdown, to be posted as it is.
std::string sockets_text(const Machine& machine, const BenchNodesOptions& options,
                         const std::vector<SocketRow>& rows) {
  std::string text = fmt::format(
      "{}\nexperts of one layer of {}: ms, GB/s of weights, and times as fast as one node\n\n"
      "| weights | tokens | layout | threads | ms (quartiles) | GB/s | x one node |\n"
      "|---|---|---|---|---|---|---|\n",
      machine_text(machine), options.shape);
  for (const SocketRow& row : rows) {
    double one_node = 0;
    for (const SocketRow& other : rows) {
      if (other.dtype == row.dtype && other.row.tokens == row.row.tokens &&
          other.row.layout == bench::NodeLayout::kOneNode) {
        one_node = other.row.ms.median;
      }
    }
    fmt::format_to(std::back_inserter(text),
                   "| {} | {} | {} | {} | {:.3f} ({:.3f}-{:.3f}) | {:.1f} | {:.2f} |\n", row.dtype,
                   row.row.tokens, name(row.row.layout), row.row.threads, row.row.ms.median,
                   row.row.ms.low, row.row.ms.high, row.row.gbytes, one_node / row.row.ms.median);
  }
  if (machine.nodes.size() == 1)
    text += "\nThis machine has one memory node: there is nothing to compare it with.\n";
  return text;
}

Json sockets_json(const std::vector<SocketRow>& rows) {
  Json list = Json::array();
  for (const SocketRow& row : rows) {
    list.push_back({{"dtype", row.dtype},
                    {"tokens", row.row.tokens},
                    {"layout", name(row.row.layout)},
                    {"threads", row.row.threads},
                    {"ms", row.row.ms.median},
                    {"ms_quartiles", spread_json(row.row.ms)},
                    {"gbytes", row.row.gbytes}});
  }
  return list;
}

}  // namespace

void bench_machine(const BenchNodesOptions& options) {
  const Machine machine(options.pretend_nodes);
  LinePrinter printer;
  printer.status("measuring the memory of all nodes");
  const std::vector<NodeStream> streams =
      bench::measure_node_streams(machine.nodes, effort_of(options));
  printer.finish("measured");
  if (!options.json) return print_report(machine_text(machine) + streams_text(machine, streams));
  Json report = machine_json(machine);
  report["streams"] = streams_json(streams);
  print_report(report.dump(1) + "\n");
}

void bench_sockets(const BenchNodesOptions& options) {
  const Machine machine(options.pretend_nodes);
  LinePrinter printer;
  std::vector<SocketRow> rows;
  for (const std::string& dtype : options.dtypes) {
    for (const bench::NodeLayout layout : bench::layouts_for(machine.nodes.size())) {
      printer.status(fmt::format("{}, {}", dtype, name(layout)));
      for (const NodeLayoutRow& row : bench::bench_layer_on_nodes(
               machine.nodes, layout, bench::parse_model(options.shape),
               bench::find_weight_dtype(dtype), options.tokens, effort_of(options))) {
        rows.push_back({dtype, row});
      }
    }
  }
  printer.finish("measured");
  if (!options.json) return print_report(sockets_text(machine, options, rows));
  Json report = machine_json(machine);
  report["shape"] = options.shape;
  report["rows"] = sockets_json(rows);
  print_report(report.dump(1) + "\n");
}

}  // namespace trimtab::cli
