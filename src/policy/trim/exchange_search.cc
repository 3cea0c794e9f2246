// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/exchange_search.h"

#include <algorithm>
#include <numeric>

#include "policy/layer_placement.h"

namespace trimtab {
namespace {

// Loads of one replica of each expert in every episode: [experts, episodes].
Matrix<float> replica_shares(const LayerTask& task, std::span<const int32_t> placement) {
  const std::vector<int32_t> replicas = task.replicas(placement);
  const int episodes = task.episodes->count;
  Matrix<float> share(task.num_experts, episodes);
  for (int32_t e = 0; e < task.num_experts; ++e) {
    const float inverse = share_of(1, replicas[e]);
    const float* all = task.episodes->of(e).data();
    float* one = share[e].data();
    for (int k = 0; k < episodes; ++k) one[k] = all[k] * inverse;
  }
  return share;
}

// Loads of the slots that are not searched: [ranks, episodes].
Matrix<float> full_loads(const LayerTask& task, const Matrix<float>& share) {
  const int episodes = task.episodes->count;
  Matrix<float> loads(task.num_ranks(), episodes, 0);
  if (task.full_total == 0) return loads;
  std::vector<float> all(episodes, 0);
  for (int32_t e = 0; e < task.num_experts; ++e) {
    for (int k = 0; k < episodes; ++k) all[k] += share(e, k);
  }
  for (int r = 0; r < task.num_ranks(); ++r) {
    const auto sets = static_cast<float>(task.full[r]);
    for (int k = 0; k < episodes; ++k) loads(r, k) = sets * all[k];
  }
  return loads;
}

// Adds the searched slots to `loads`.
void add_slots(const LayerTask& task, std::span<const int32_t> placement,
               const Matrix<float>& share, Matrix<float>& loads) {
  const int episodes = task.episodes->count;
  for (int r = 0; r < task.num_ranks(); ++r) {
    float* to = loads[r].data();
    for (const int32_t e : task.slots.of(r, placement)) {
      const float* from = share[e].data();
      for (int k = 0; k < episodes; ++k) to[k] += from[k];
    }
  }
}

// The largest load of any rank in each episode, at least 0: [episodes].
std::vector<float> peaks(const Matrix<float>& loads, int ranks, int episodes) {
  std::vector<float> peak(episodes, 0);
  for (int r = 0; r < ranks; ++r) {
    for (int k = 0; k < episodes; ++k) peak[k] = std::max(peak[k], loads(r, k));
  }
  return peak;
}

}  // namespace

double placement_cost(const LayerTask& task, std::span<const int32_t> placement) {
  const Matrix<float> share = replica_shares(task, placement);
  Matrix<float> loads = full_loads(task, share);
  add_slots(task, placement, share, loads);
  const std::vector<float> peak = peaks(loads, task.num_ranks(), task.episodes->count);
  double mean = 0;
  for (int k = 0; k < task.episodes->count; ++k) {
    mean += double{task.episodes->weight[k]} * double{peak[k]};
  }
  return mean + double{task.move_price} * task.moves(placement);
}

Noise::Noise(int most_slots) : values_(kPlaces + cells(most_slots, lane_width(most_slots))) {
  Random random(0x6775'6d62'656cU);
  for (float& value : values_) value = coarse_log(-coarse_log(random.unit()));
}

ExchangeSearch::ExchangeSearch(const LayerTask& task, const Noise& noise,
                               std::vector<int32_t> placement, uint64_t seed)
    : task_(task),
      noise_(noise),
      episodes_(task.episodes->count),
      width_(lane_width(most_slots(task.slots))),
      best_exchange_(best_exchange()),
      placement_(std::move(placement)),
      share_(replica_shares(task, placement_)),
      base_(full_loads(task, share_)),
      on_rank_(count_held<uint8_t>(task.slots, placement_, task.num_experts)),
      up_(task.num_experts, episodes_),
      down_(task.num_experts, episodes_),
      slot_up_(task.num_ranks(), int64_t{episodes_} * width_, 0),
      slot_down_(task.num_ranks(), int64_t{episodes_} * width_, 0),
      potential_(task.num_ranks(), episodes_),
      sum_(episodes_),
      scale_(episodes_),
      term_a_(episodes_),
      term_b_(episodes_),
      cost_a_(width_),
      cost_b_(width_),
      order_(task.num_ranks()),
      random_(seed) {
  std::iota(order_.begin(), order_.end(), 0);
}

void ExchangeSearch::write_slot(int rank, int slot) {
  const int32_t e = expert_at(rank, slot);
  const float* up = up_[e].data();
  const float* down = down_[e].data();
  float* to_up = slot_up_[rank].data() + slot;
  float* to_down = slot_down_[rank].data() + slot;
  const int64_t width = width_;
  for (int k = 0; k < episodes_; ++k) {
    to_up[k * width] = up[k];
    to_down[k * width] = down[k];
  }
}

void ExchangeSearch::sharpen(float sharpness) {
  const int episodes = episodes_;
  Matrix<float> load = base_;
  add_slots(task_, placement_, share_, load);
  float largest = 0;
  for (const int32_t e : placement_) {
    const float* share = share_[e].data();
    for (int k = 0; k < episodes; ++k) largest = std::max(largest, share[k]);
  }
  // exp() of a replica and its inverse must stay far inside the range of floats.
  if (sharpness * largest > 40.0F) sharpness = 40.0F / largest;
  if (sharpness != sharpness_) {
    sharpness_ = sharpness;
    const std::span<const float> share = share_.values();
    float* up = up_.values().data();
    float* down = down_.values().data();
    for (int64_t i = 0; i < std::ssize(share); ++i) up[i] = coarse_exp(sharpness * share[i]);
    for (int64_t i = 0; i < std::ssize(share); ++i) down[i] = coarse_exp(-sharpness * share[i]);
    for (int r = 0; r < task_.num_ranks(); ++r) {
      for (int s = 0; s < task_.slots.count(r); ++s) write_slot(r, s);
    }
  }
  // Relative to the highest rank, so that exp() stays in range however uneven the ranks are.
  const std::vector<float> highest = peaks(load, task_.num_ranks(), episodes);
  std::fill(sum_.begin(), sum_.end(), 0.0F);
  for (int r = 0; r < task_.num_ranks(); ++r) {
    float* potential = potential_[r].data();
    const float* x = load[r].data();
    for (int k = 0; k < episodes; ++k) {
      potential[k] = coarse_exp(sharpness * (x[k] - highest[k]));
    }
    for (int k = 0; k < episodes; ++k) sum_[k] += potential[k];
  }
  for (int k = 0; k < episodes; ++k) {
    scale_[k] = task_.episodes->weight[k] / (sharpness * sum_[k]);
  }
}

void ExchangeSearch::price(int rank, int other, float* cost) {
  const int slots = task_.slots.count(rank);
  for (int s = 0; s < slots; ++s) {
    const int32_t e = expert_at(rank, s);
    float c = on_rank_(other, e) != 0 ? kBlocked : 0.0F;
    const int moves = int{task_.holds(rank, e)} - int{task_.holds(other, e)};
    c += task_.move_price * static_cast<float>(moves);
    cost[s] = c;
  }
  for (int s = slots; s < width_; ++s) cost[s] = kBlocked;
}

bool ExchangeSearch::visit(int a, int b, float temperature) {
  const int episodes = episodes_;
  const float* potential_a = potential_[a].data();
  const float* potential_b = potential_[b].data();
  for (int k = 0; k < episodes; ++k) {
    term_a_[k] = potential_a[k] * scale_[k];
    term_b_[k] = potential_b[k] * scale_[k];
  }
  price(a, b, cost_a_.data());
  price(b, a, cost_b_.data());
  const PairSide side_a{slot_up_[a].data(), slot_down_[a].data(), term_a_.data(), cost_a_.data(),
                        task_.slots.count(a)};
  const PairSide side_b{slot_up_[b].data(), slot_down_[b].data(), term_b_.data(), cost_b_.data(),
                        task_.slots.count(b)};
  const float* noise = nullptr;
  float limit = -1e-7F;
  if (temperature > 0) {
    const uint64_t bits = random_.bits();
    noise = noise_.block(bits);
    limit = temperature * *noise_.block(bits >> 32);
  }
  const PairChoice choice =
      best_exchange_(side_a, side_b, episodes, width_, limit, noise, temperature);
  if (choice.slot_a < 0) return false;
  exchange(a, choice.slot_a, b, choice.slot_b);
  return true;
}

void ExchangeSearch::exchange(int a, int slot_a, int b, int slot_b) {
  int32_t& in_a = expert_at(a, slot_a);
  int32_t& in_b = expert_at(b, slot_b);
  const int32_t p = in_a;
  const int32_t q = in_b;
  float* potential_a = potential_[a].data();
  float* potential_b = potential_[b].data();
  const float* up_p = up_[p].data();
  const float* up_q = up_[q].data();
  const float* down_p = down_[p].data();
  const float* down_q = down_[q].data();
  const int episodes = episodes_;
  for (int k = 0; k < episodes; ++k) {
    const float new_a = potential_a[k] * (down_p[k] * up_q[k]);
    const float new_b = potential_b[k] * (up_p[k] * down_q[k]);
    sum_[k] += (new_a - potential_a[k]) + (new_b - potential_b[k]);
    potential_a[k] = new_a;
    potential_b[k] = new_b;
    scale_[k] = task_.episodes->weight[k] / (sharpness_ * sum_[k]);
  }
  --on_rank_(a, p);
  ++on_rank_(a, q);
  --on_rank_(b, q);
  ++on_rank_(b, p);
  std::swap(in_a, in_b);
  write_slot(a, slot_a);
  write_slot(b, slot_b);
}

int ExchangeSearch::sweep(float temperature) {
  int made = 0;
  const int ranks = task_.num_ranks();
  for (int i = ranks; i > 1; --i) std::swap(order_[i - 1], order_[random_.below(i)]);
  for (int i = 0; i < ranks; ++i) {
    for (int j = i + 1; j < ranks; ++j) made += visit(order_[i], order_[j], temperature) ? 1 : 0;
  }
  // Rounding errors grow with the exchanges, far more slowly than this.
  constexpr int kSweepsBetweenSums = 4;
  if (++sweeps_ % kSweepsBetweenSums == 0) sharpen(sharpness_);
  return made;
}

}  // namespace trimtab
