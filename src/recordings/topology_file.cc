// SPDX-License-Identifier: Apache-2.0
#include "trimtab/topology_file.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/cat.h"
#include "base/file.h"
#include "base/quoted.h"
#include "recordings/json_table.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr std::string_view kTopology = "trimtab_topology";
constexpr int64_t kMostRanks = 4096;
constexpr int64_t kMostPrice = 1'000'000'000;

struct TopologyFields {
  std::optional<IntTable> nodes, prices;
  std::optional<int64_t> in_node, between_nodes;
};

TopologyFields read_fields(JsonReader& json, const std::string& file) {
  TopologyFields fields;
  FormatKeys format(kTopology);
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    const int64_t at = json.offset();
    if (format.read(json, key, at)) continue;
    if (key == "nodes") {
      fields.nodes = read_table(json, key, 1, 1, kMostRanks - 1);
    } else if (key == "prices") {
      fields.prices = read_table(json, key, 2, 2, kMostPrice);
    } else if (key == "in_node") {
      fields.in_node = json.integer(0, kMostPrice);
    } else if (key == "between_nodes") {
      fields.between_nodes = json.integer(0, kMostPrice);
    } else {
      json.fail(at, cat("unknown key ", json_quoted(key)));
    }
  }
  json.end();
  format.check(file);
  if (!fields.nodes && !fields.prices)
    throw FormatError(file, 0, "neither \"nodes\" nor \"prices\"");
  return fields;
}

// Nodes are numbered from 0 on, without a gap.
void check_nodes(const JsonReader& json, const IntTable& nodes) {
  const std::set<int64_t> numbers(nodes.values.begin(), nodes.values.end());
  if (numbers.empty()) json.fail(nodes.at, "nodes: no rank");
  if (std::ssize(nodes.values) > kMostRanks)
    json.fail(nodes.at, cat(nodes.values.size(), " ranks: more than ", kMostRanks));
  int64_t expected = 0;
  for (const int64_t node : numbers) {
    if (node != expected++)
      json.fail(nodes.at, cat("nodes: no rank is on node ", expected - 1, ", one is on ", node));
  }
}

void check_prices(const JsonReader& json, const TopologyFields& fields) {
  const IntTable& prices = *fields.prices;
  const int64_t ranks = prices.shape[0];
  if (ranks == 0 || prices.shape[1] != ranks) {
    json.fail(prices.at, cat("prices of ", ranks, " x ", ranks == 0 ? 0 : prices.shape[1],
                             " ranks; a square table expected"));
  }
  if (ranks > kMostRanks) json.fail(prices.at, cat(ranks, " ranks: more than ", kMostRanks));
  if (fields.nodes && std::ssize(fields.nodes->values) != ranks)
    json.fail(prices.at,
              cat("prices of ", ranks, " ranks; nodes has ", fields.nodes->values.size()));
  if (fields.in_node || fields.between_nodes)
    json.fail(prices.at, "\"prices\" beside \"in_node\" or \"between_nodes\"");
  const Table<const int64_t> rows = prices.rows();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (rows(rank, rank) != 0)
      json.fail(prices.row_at[cells(rank)], cat("the price from rank ", rank, " to itself is ",
                                                rows(rank, rank), ", expected 0"));
  }
}

}  // namespace

Topology parse_topology(std::string_view text, const std::string& file) {
  JsonReader json(text, file);
  const TopologyFields fields = read_fields(json, file);
  std::vector<int32_t> nodes;
  if (fields.nodes) {
    check_nodes(json, *fields.nodes);
    nodes.assign(fields.nodes->values.begin(), fields.nodes->values.end());
  }
  if (fields.prices) {
    check_prices(json, fields);
    return {.node_of_rank = std::move(nodes),
            .prices = {fields.prices->values.begin(), fields.prices->values.end()}};
  }
  if (fields.in_node.has_value() != fields.between_nodes.has_value())
    throw FormatError(file, 0, "\"in_node\" and \"between_nodes\" come together");
  if (!fields.in_node) return {.node_of_rank = std::move(nodes)};
  return Topology::with_two_prices(std::move(nodes), static_cast<double>(*fields.in_node),
                                   static_cast<double>(*fields.between_nodes));
}

Topology read_topology(const std::string& path) {
  const std::vector<std::byte> image = read_file(path);
  return parse_topology({reinterpret_cast<const char*>(image.data()), image.size()}, path);
}

}  // namespace trimtab
