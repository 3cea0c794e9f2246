// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/anneal.h"

#include <algorithm>
#include <utility>

#include "base/portable_math.h"

namespace trimtab {
namespace {

constexpr uint64_t kSeed = 0x7472696d;

float part_of(int part, int whole) {
  return static_cast<float>(part) / static_cast<float>(whole);
}
float geometric(float from, float to, float part) {
  return from * coarse_exp(part * coarse_log(to / from));
}

}  // namespace

std::vector<int32_t> anneal(const LayerTask& task, const Noise& noise,
                            std::vector<int32_t> placement, const Effort& effort, int sweeps,
                            const std::function<bool()>& late) {
  constexpr float kFirstSharpness = 10;
  constexpr float kLastSharpness = 40;
  constexpr float kFirstTemperature = 1e-3F;
  constexpr float kLastTemperature = 1e-5F;
  constexpr int kSharpenings = 5;
  constexpr int kMaxDescents = 20;
  const int64_t ranks = task.num_ranks();
  const int64_t pairs = std::max<int64_t>(1, ranks * (ranks - 1) / 2);
  const int64_t most = effort.seconds > 0 ? kMostSweeps : effort.max_visits / pairs;
  const int affordable = static_cast<int>(std::clamp<int64_t>(most, 1, kMostSweeps));
  sweeps = std::min(sweeps, affordable);
  ExchangeSearch search(task, noise, std::move(placement), kSeed);
  int sharpened = -1;
  for (int i = 0; i < sweeps && !late(); ++i) {
    if (i * kSharpenings / sweeps != sharpened) {
      sharpened = i * kSharpenings / sweeps;
      search.sharpen(
          geometric(kFirstSharpness, kLastSharpness, part_of(sharpened, kSharpenings - 1)));
    }
    const float done = sweeps > 1 ? part_of(i, sweeps - 1) : 1.0F;
    search.sweep(geometric(kFirstTemperature, kLastTemperature, done));
  }
  search.sharpen(kLastSharpness);
  for (int i = 0; i < std::min(kMaxDescents, affordable) && search.sweep(0) > 0 && !late(); ++i) {
  }
  return {search.placement().begin(), search.placement().end()};
}

}  // namespace trimtab
