// SPDX-License-Identifier: Apache-2.0
// After the first calls a forward pass takes nothing from the heap, on any rank, also when it is
// traced.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/allocation_count.h"
#include "layer/layer_testing.h"

namespace trimtab {
namespace {

using namespace layer_testing;

class LayerAllocation : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Dispatchers, LayerAllocation, testing::ValuesIn(kWays),
                         [](const auto& param) { return param.param.name(); });

TEST_P(LayerAllocation, NoneAfterWarmUp) {
  const World world({.dispatcher = GetParam().dispatcher,
                     .dtype = DType::kBF16,
                     .threads = 2,
                     .split = GetParam().split});
  const Placement placement(1, kExperts, {3, 3, 3}, {0, 1, 2, 3, 4, 5, 0, 2, 0});
  run_ranks(3, [&](Communicator& comm) {
    const std::unique_ptr<Communicator> other = comm.duplicate();
    const MoeLayer layer = world.layer(placement, comm.rank());
    Team team(world.options.threads);
    OwnLane first(comm, layer, team), second(*other, layer, team);
    TraceBuffer trace(256);  // overwritten several times
    first.lane.trace = second.lane.trace = &trace;
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
    EXPECT_GT(trace.overwritten(), 0);
    comm.barrier();
  });
}

}  // namespace
}  // namespace trimtab
