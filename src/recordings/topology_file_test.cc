// SPDX-License-Identifier: Apache-2.0
#include "trimtab/topology_file.h"

#include <gtest/gtest.h>

#include "base/test_folder.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

std::string with(const std::string& rest) {
  return R"({"format": "trimtab_topology", "version": 1, )" + rest + "}";
}

std::string topology_refusal(const std::string& text) {
  try {
    parse_topology(text, "t.json");
  } catch (const FormatError& error) {
    EXPECT_LE(error.offset(), std::ssize(text));
    return error.what();
  }
  return "";
}

TEST(TopologyFile, HasNodesPricesOrBoth) {
  const Topology nodes = parse_topology(with(R"("nodes": [1, 0, 1])"), "t.json");
  EXPECT_EQ(nodes.node_of_rank, (std::vector<int32_t>{1, 0, 1}));
  EXPECT_FALSE(nodes.has_prices());
  const Topology two =
      parse_topology(with(R"("nodes": [0, 0, 1], "in_node": 1, "between_nodes": 9)"), "t.json");
  EXPECT_EQ(two.prices, (std::vector<double>{0, 1, 9, 1, 0, 9, 9, 9, 0}));
  const Topology prices = parse_topology(with(R"("prices": [[0, 2], [3, 0]])"), "t.json");
  EXPECT_TRUE(prices.node_of_rank.empty());
  EXPECT_EQ(prices.prices, (std::vector<double>{0, 2, 3, 0}));
  const Topology both =
      parse_topology(with(R"("prices": [[0, 2], [3, 0]], "nodes": [0, 1])"), "t.json");
  EXPECT_EQ(both.num_nodes(), 2);
  EXPECT_TRUE(both.has_prices());
}

TEST(TopologyFile, IsRefusedWithThePlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {with(R"("nodes": [])"), "t.json at byte"},
      {with(R"("nodes": [0, 2])"), "nodes: no rank is on node 1, one is on 2"},
      {with(R"("nodes": [0, -1])"), "t.json at byte 58"},
      {with(R"("prices": [[0, 1]])"), "prices of 1 x 2 ranks; a square table expected"},
      {with(R"("prices": [[0, 1], [1, 4]])"), "the price from rank 1 to itself is 4, expected 0"},
      {with(R"("prices": [[0, 1], [1, 0]], "nodes": [0])"), "prices of 2 ranks; nodes has 1"},
      {with(R"("prices": [[0, 1], [1, 0]], "in_node": 1)"),
       R"("prices" beside "in_node" or "between_nodes")"},
      {with(R"("nodes": [0, 1], "in_node": 1)"), R"("in_node" and "between_nodes" come together)"},
      {with(R"("in_node": 1, "between_nodes": 2)"), R"(neither "nodes" nor "prices")"},
      {with(R"("nodes": [0], "price": 1)"), R"(unknown key "price")"},
      {R"({"format": "trimtab_topology", "nodes": [0]})", R"(no key "format" or "version")"},
      {R"({"format": "trimtab_costs", "version": 1})",
       R"(format is "trimtab_costs"; "trimtab_topology" expected)"},
      {"", "t.json at byte 0"}};
  for (const auto& [text, wanted] : cases)
    EXPECT_NE(topology_refusal(text).find(wanted), std::string::npos)
        << text << ": " << topology_refusal(text);
  EXPECT_THROW(read_topology(TestFolder().path("none.json")), Error);
}

}  // namespace
}  // namespace trimtab
