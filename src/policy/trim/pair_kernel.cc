// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/pair_kernel.h"

#include <type_traits>

namespace trimtab {
namespace baseline {
constexpr int kNativeLanes = 4;
#include "policy/trim/pair_kernel_impl.h"
}  // namespace baseline

namespace avx2 {
PairChoice best_exchange(const PairSide& a, const PairSide& b, int episodes, int width, float limit,
                         const float* noise, float noise_scale);
}
namespace avx512 {
PairChoice best_exchange(const PairSide& a, const PairSide& b, int episodes, int width, float limit,
                         const float* noise, float noise_scale);
}

std::vector<BestExchange> all_best_exchanges() {
  std::vector<BestExchange> all = {baseline::best_exchange};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0) all.push_back(avx2::best_exchange);
  if (__builtin_cpu_supports("avx512f") != 0) all.push_back(avx512::best_exchange);
#endif
  return all;
}

BestExchange best_exchange() {
  return all_best_exchanges().back();
}

int lane_width(int slots) {
  return slots <= 4 ? 4 : slots <= 8 ? 8 : (slots + 15) / 16 * 16;
}

}  // namespace trimtab
