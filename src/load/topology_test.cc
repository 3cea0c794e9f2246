// SPDX-License-Identifier: Apache-2.0
#include "trimtab/topology.h"

#include <gtest/gtest.h>

#include <cmath>

#include "trimtab/error.h"

namespace trimtab {
namespace {

TEST(Topology, WithTwoPricesHasOneInsideNodesAndOneBetween) {
  const Topology topology = Topology::with_two_prices({0, 1, 0}, 2, 7);
  EXPECT_EQ(topology.prices, (std::vector<double>{0, 7, 2, 7, 0, 7, 2, 7, 0}));
  EXPECT_EQ(topology.num_nodes(), 2);
  EXPECT_NO_THROW(check_topology(topology, 3));
}

TEST(Topology, IsChecked) {
  EXPECT_NO_THROW(check_topology({}, 3));
  EXPECT_THROW(check_topology({.node_of_rank = {0, 0}}, 3), InvalidArgument);
  EXPECT_THROW(check_topology({.node_of_rank = {0, 2}}, 2), InvalidArgument);
  EXPECT_THROW(check_topology({.prices = {0, 1, 1}}, 2), InvalidArgument);
  for (const double price : {-1.0, std::nan(""), HUGE_VAL})
    EXPECT_THROW(check_topology({.prices = {0, price, 1, 0}}, 2), InvalidArgument) << price;
  EXPECT_THROW(check_topology({.prices = {1, 1, 1, 0}}, 2), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
