// SPDX-License-Identifier: Apache-2.0
// One MoE layer over three ranks, with nothing but the installed headers and library. Weights are
// chosen so that the answer has a closed form: expert e returns (e + 1) * silu(x) * x.
#include <trimtab/communicator.h>
#include <trimtab/error.h>
#include <trimtab/layer.h>
#include <trimtab/placement.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

namespace {

constexpr int kHidden = 8;
constexpr int kExperts = 5;
constexpr int64_t kTokens = 6;

trimtab::MatrixSource view(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return {
      reinterpret_cast<const std::byte*>(values.data()), trimtab::DType::kF32, rows, cols, cols, 1};
}

// Identity matrices for gate and up, (e + 1) times the identity for down.
std::shared_ptr<const trimtab::Mlp> expert(int e) {
  std::vector<float> identity(kHidden * kHidden, 0.0F), scaled(identity.size(), 0.0F);
  for (size_t i = 0; i < kHidden; ++i) {
    identity[i * kHidden + i] = 1.0F;
    scaled[i * kHidden + i] = static_cast<float>(e + 1);
  }
  const trimtab::MlpSource source{.gate = view(identity, kHidden, kHidden),
                                  .up = view(identity, kHidden, kHidden),
                                  .down = view(scaled, kHidden, kHidden),
                                  .gate_bias = {},
                                  .up_bias = {},
                                  .down_bias = {}};
  return std::make_shared<const trimtab::Mlp>(source, trimtab::Activation{}, trimtab::DType::kF32);
}

// The router's weights: token t of each rank has its largest value in dimension t, which votes for
// expert t % 5.
std::shared_ptr<const trimtab::Linear> gate() {
  std::vector<float> weight(kExperts * kHidden, 0.0F);
  for (size_t h = 0; h < kHidden; ++h) weight[(h % kExperts) * kHidden + h] = 1.0F;
  return std::make_shared<const trimtab::Linear>(view(weight, kExperts, kHidden),
                                                 trimtab::VectorSource{}, trimtab::DType::kF32);
}

}  // namespace

int main() {
  using namespace trimtab;
  std::atomic<int> wrong = 0;
  const Placement placement = Placement::linear(1, kExperts, 3);
  run_ranks(3, [&](Communicator& comm) {
    std::vector<std::shared_ptr<const Mlp>> slots;
    for (int s = placement.first_slot(comm.rank()); s < placement.first_slot(comm.rank() + 1);
         ++s) {
      slots.push_back(expert(placement.logical(0)[s]));
    }
    const DispatchShape shape{.max_tokens = kTokens,
                              .hidden = kHidden,
                              .top_k = 1,
                              .dtype = DType::kF32,
                              .first_slots = placement.first_slots()};
    const MoeLayer layer({.gate = gate(),
                          .router = std::make_shared<const Router>(
                              RouterConfig{.num_experts = kExperts, .top_k = 1}),
                          .replicas = std::make_shared<const SplitTable>(placement, 0),
                          .dispatcher = make_pull_dispatcher(shape, comm.rank()),
                          .experts = make_grouped_experts(std::move(slots), kHidden, DType::kF32),
                          .shared = std::nullopt,
                          .layer = 0});
    Workspace workspace(layer.workspace_bytes(kTokens));
    Team team(1);
    Lane lane{comm, workspace, team};
    std::vector<float> x(kTokens * kHidden, 0.0F), out(x.size());
    for (size_t t = 0; t < kTokens; ++t) x[t * kHidden + t] = static_cast<float>(comm.rank() + 1);
    run(layer.forward(ConstRows(x.data(), kTokens, kHidden), Rows(out.data(), kTokens, kHidden),
                      lane));
    for (size_t t = 0; t < kTokens; ++t) {
      const float v = static_cast<float>(comm.rank() + 1);
      const float want = static_cast<float>(t % kExperts + 1) * v * v / (1.0F + std::exp(-v));
      if (std::abs(out[t * kHidden + t] - want) > 1e-5F * want) ++wrong;
    }
  });
  if (wrong != 0) {
    std::fprintf(stderr, "%d tokens are wrong\n", wrong.load());
    return 1;
  }
  try {
    Router(RouterConfig{.num_experts = 2, .top_k = 3});
  } catch (const InvalidArgument& error) {
    std::printf("ok; a wrong router says: %s\n", error.what());
    return 0;
  }
  std::fprintf(stderr, "a router that picks 3 of 2 experts was not refused\n");
  return 1;
}
