// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/cores.h"
#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

const std::string kShort = " --cold-mb 8 --seconds 0";

TEST(BenchMachine, SaysWhatThereIs) {
  const Outcome run = trimtab("bench machine --json" + kShort);
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  const MachineParts parts = machine_parts();
  EXPECT_EQ(json.at("cores"), usable_cores().count);
  EXPECT_EQ(json.at("by_hwloc"), parts.by_hwloc);
  EXPECT_EQ(json.at("packages"), parts.packages);
  EXPECT_EQ(json.at("nodes").size(), parts.nodes.size());
  EXPECT_EQ(json.at("streams").size(), parts.nodes.size() * parts.nodes.size());
  for (const Json& stream : json.at("streams")) {
    EXPECT_GT(stream.at("gbytes"), 0);
    EXPECT_GT(stream.at("threads"), 0);
  }
  const Outcome text = trimtab("bench machine" + kShort);
  EXPECT_TRUE(contains(text.out, "\nGB/s of cold memory, cores of a node")) << text.out;
}

// What is meant for several nodes, where there is one.
TEST(BenchMachine, PretendedNodes) {
  if (usable_cores().count < 2) GTEST_SKIP() << "one core can't be two nodes";
  const Outcome run = trimtab("bench machine --pretend-nodes 2 --json" + kShort);
  ASSERT_EQ(run.status, 0) << run.err;
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json.at("nodes").size(), 2U);
  EXPECT_EQ(json.at("streams").size(), 4U);
  EXPECT_TRUE(json.at("pretended_nodes"));
}

TEST(BenchSockets, TableToPost) {
  const int nodes = usable_cores().count < 2 ? 1 : 2;
  const std::string command =
      "bench sockets --shape olmoe --dtype w8a8 --tokens 1,3 "
      "--pretend-nodes " +
      std::to_string(nodes) + kShort;
  const Outcome run = trimtab(command + " --json");
  if (run.status != 0 && contains(run.err, "can't spread memory")) GTEST_SKIP() << run.err;
  ASSERT_EQ(run.status, 0) << run.err;
  const Json rows = Json::parse(run.out).at("rows");
  ASSERT_EQ(rows.size(), nodes == 1 ? 2U : 8U);
  for (const Json& row : rows) EXPECT_TRUE(row.at("ms") > 0 && row.at("gbytes") > 0) << row;
  EXPECT_EQ(rows[0].at("layout"), "one node");
  const Outcome text = trimtab(command);
  EXPECT_TRUE(contains(text.out, "\n| w8a8 | 1 | one node | 1 | ")) << text.out;
  EXPECT_TRUE(contains(text.out, " | 1.00 |\n")) << text.out;
}

TEST(BenchNodes, WrongUsage) {
  for (const Failure& failure :
       std::vector<Failure>{{"bench sockets --shape 8x8", "8x8 is not a model"},
                            {"bench sockets --dtype f64", "f64 is not a dtype of weights"},
                            {"bench machine --pretend-nodes 0", "--pretend-nodes"}}) {
    const std::string line = error_line(failure, 2);
    EXPECT_TRUE(contains(line, failure.message)) << line;
  }
  EXPECT_TRUE(contains(error_line({"bench machine --pretend-nodes 64", ""}, 1),
                       "64 nodes can't be made of "));
}

}  // namespace
}  // namespace trimtab::cli
