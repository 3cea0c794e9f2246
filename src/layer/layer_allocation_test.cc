// SPDX-License-Identifier: Apache-2.0
// After the first calls a forward pass takes nothing from the heap, on any rank.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/allocation_count.h"
#include "layer/layer_testing.h"

namespace trimtab {
namespace {

using namespace layer_testing;

class LayerAllocation : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Dispatchers, LayerAllocation,
                         testing::Values("pull", "fused", "all_gather", "all_to_all", "mc2", "packed"),
                         [](const auto& param) { return param.param; });

TEST_P(LayerAllocation, NoneAfterWarmUp) {
  const World world({.dispatcher = GetParam(), .dtype = DType::kBF16, .threads = 2});
  const Placement placement = Placement::linear(1, kExperts, 3);
  run_ranks(3, [&](Communicator& comm) {
    const std::unique_ptr<Communicator> other = comm.duplicate();
    const MoeLayer layer = world.layer(placement, comm.rank());
    Team team(world.options.threads);
    OwnLane first(comm, layer, team), second(*other, layer, team);
    const int64_t tokens = tokens_of(comm.rank());
    const std::vector<float> x = input_of(comm.rank(), tokens);
    std::vector<float> out(2 * x.size());
    const ConstRows rows(x.data(), tokens, kHidden);
    const Rows to(out.data(), 2 * tokens, kHidden);
    const auto calls = [&] {
      run(layer.forward(rows, to.slice(0, tokens), first.lane));
      overlap(layer.forward(rows, to.slice(0, tokens), first.lane),
              layer.forward(rows, to.slice(tokens, tokens), second.lane));
    };
    calls();
    comm.barrier();
    const int64_t before = allocation_count();
    comm.barrier();
    for (int i = 0; i < 20; ++i) calls();
    comm.barrier();
    EXPECT_EQ(allocation_count(), before);
    comm.barrier();
  });
}

}  // namespace
}  // namespace trimtab
