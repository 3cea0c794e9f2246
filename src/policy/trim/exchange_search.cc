// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/exchange_search.h"

#include <algorithm>
#include <numeric>

#include "trimtab/table.h"

namespace trimtab {
namespace {

// Loads of one replica of each expert in every episode: [experts][episodes].
std::vector<float> replica_shares(const LayerTask& task, std::span<const int32_t> map) {
  const std::vector<int32_t> copies = task.copies(map);
  const auto k_count = static_cast<size_t>(task.episodes->count);
  std::vector<float> share(task.episodes->share.size());
  for (size_t e = 0; e < copies.size(); ++e) {
    const float inverse = 1.0F / static_cast<float>(copies[e]);
    for (size_t k = 0; k < k_count; ++k)
      share[e * k_count + k] = task.episodes->share[e * k_count + k] * inverse;
  }
  return share;
}

// Loads of the slots that are not searched: [ranks][episodes].
std::vector<float> full_loads(const LayerTask& task, std::span<const float> share) {
  const auto k_count = static_cast<size_t>(task.episodes->count);
  std::vector<float> loads(static_cast<size_t>(task.num_ranks) * k_count, 0);
  if (task.full_total == 0) return loads;
  std::vector<float> all(k_count, 0);
  for (size_t i = 0; i < share.size(); ++i) all[i % k_count] += share[i];
  for (size_t i = 0; i < loads.size(); ++i)
    loads[i] = static_cast<float>(task.full[i / k_count]) * all[i % k_count];
  return loads;
}

// Adds the searched slots to `loads`.
void add_slots(const LayerTask& task, std::span<const int32_t> map, std::span<const float> share,
               std::vector<float>& loads) {
  const auto k_count = static_cast<size_t>(task.episodes->count);
  for (int r = 0; r < task.num_ranks; ++r) {
    float* to = loads.data() + static_cast<size_t>(r) * k_count;
    for (int s = task.first_slots[r]; s < task.first_slots[r + 1]; ++s) {
      const float* from = share.data() + static_cast<size_t>(map[s]) * k_count;
      for (size_t k = 0; k < k_count; ++k) to[k] += from[k];
    }
  }
}

int most_slots(const LayerTask& task) {
  int most = 1;
  for (int r = 0; r < task.num_ranks; ++r) most = std::max(most, task.slots_of(r));
  return most;
}

}  // namespace

double map_cost(const LayerTask& task, std::span<const int32_t> map) {
  const std::vector<float> share = replica_shares(task, map);
  std::vector<float> loads = full_loads(task, share);
  add_slots(task, map, share, loads);
  const auto k_count = static_cast<size_t>(task.episodes->count);
  std::vector<float> peak(k_count, 0);
  for (size_t i = 0; i < loads.size(); ++i)
    peak[i % k_count] = std::max(peak[i % k_count], loads[i]);
  double mean = 0;
  for (size_t k = 0; k < k_count; ++k) {
    mean += static_cast<double>(task.episodes->weight[k]) * static_cast<double>(peak[k]);
  }
  int moves = 0;
  for (int r = 0; r < task.num_ranks; ++r) moves += task.received(r, map);
  return mean + static_cast<double>(task.move_price) * moves;
}

Noise::Noise(int most_slots) : values_(kPlaces + cells(most_slots, lane_width(most_slots))) {
  Random random(0x6775'6d62'656cU);
  for (float& value : values_) value = coarse_log(-coarse_log(random.unit()));
}

ExchangeSearch::ExchangeSearch(const LayerTask& task, const Noise& noise, std::vector<int32_t> map,
                               uint64_t seed)
    : task_(task),
      noise_(noise),
      episodes_(task.episodes->count),
      width_(lane_width(most_slots(task))),
      best_exchange_(best_exchange()),
      map_(std::move(map)),
      share_(replica_shares(task, map_)),
      base_(full_loads(task, share_)),
      on_rank_(cells(task.num_ranks, task.num_experts), 0),
      order_(task.num_ranks),
      random_(seed) {
  const auto num_ranks = static_cast<size_t>(task.num_ranks);
  const auto k_count = static_cast<size_t>(episodes_);
  const auto width = static_cast<size_t>(width_);
  for (int r = 0; r < task.num_ranks; ++r) {
    for (int s = 0; s < task.slots_of(r); ++s) ++on_rank(r, expert_at(r, s));
  }
  up_.resize(share_.size());
  down_.resize(share_.size());
  slot_up_.assign(num_ranks * k_count * width, 0);
  slot_down_.assign(num_ranks * k_count * width, 0);
  potential_.resize(num_ranks * k_count);
  sum_.resize(k_count);
  scale_.resize(k_count);
  term_a_.resize(k_count);
  term_b_.resize(k_count);
  cost_a_.resize(width);
  cost_b_.resize(width);
  std::iota(order_.begin(), order_.end(), 0);
}

void ExchangeSearch::write_slot(int rank, int slot) {
  const auto width = static_cast<size_t>(width_);
  const auto e = static_cast<size_t>(expert_at(rank, slot));
  const float* up = up_.data() + e * static_cast<size_t>(episodes_);
  const float* down = down_.data() + e * static_cast<size_t>(episodes_);
  float* to_up = slot_up_.data() + cell(rank) * width + static_cast<size_t>(slot);
  float* to_down = slot_down_.data() + cell(rank) * width + static_cast<size_t>(slot);
  for (size_t k = 0; k < static_cast<size_t>(episodes_); ++k) {
    to_up[k * width] = up[k];
    to_down[k * width] = down[k];
  }
}

void ExchangeSearch::sharpen(float sharpness) {
  const auto k_count = static_cast<size_t>(episodes_);
  std::vector<float> load = base_;
  add_slots(task_, map_, share_, load);
  float largest = 0;
  for (const int32_t e : map_) {
    const float* share = share_.data() + static_cast<size_t>(e) * k_count;
    for (size_t k = 0; k < k_count; ++k) largest = std::max(largest, share[k]);
  }
  // exp() of a replica and its inverse must stay far inside the range of floats.
  if (sharpness * largest > 40.0F) sharpness = 40.0F / largest;
  if (sharpness != sharpness_) {
    sharpness_ = sharpness;
    for (size_t i = 0; i < share_.size(); ++i) up_[i] = coarse_exp(sharpness * share_[i]);
    for (size_t i = 0; i < share_.size(); ++i) down_[i] = coarse_exp(-sharpness * share_[i]);
    for (int r = 0; r < task_.num_ranks; ++r) {
      for (int s = 0; s < task_.slots_of(r); ++s) write_slot(r, s);
    }
  }
  // Relative to the highest rank, so that exp() stays in range however uneven the ranks are.
  std::vector<float> highest(k_count, 0);
  for (int r = 0; r < task_.num_ranks; ++r) {
    for (size_t k = 0; k < k_count; ++k) highest[k] = std::max(highest[k], load[cell(r) + k]);
  }
  std::fill(sum_.begin(), sum_.end(), 0.0F);
  for (int r = 0; r < task_.num_ranks; ++r) {
    float* potential = potential_.data() + cell(r);
    const float* x = load.data() + cell(r);
    for (size_t k = 0; k < k_count; ++k) potential[k] = coarse_exp(sharpness * (x[k] - highest[k]));
    for (size_t k = 0; k < k_count; ++k) sum_[k] += potential[k];
  }
  for (size_t k = 0; k < k_count; ++k)
    scale_[k] = task_.episodes->weight[k] / (sharpness * sum_[k]);
}

void ExchangeSearch::price(int rank, int other, float* cost) {
  const int slots = task_.slots_of(rank);
  for (int s = 0; s < slots; ++s) {
    const int32_t e = expert_at(rank, s);
    float c = on_rank(other, e) != 0 ? kBlocked : 0.0F;
    c += task_.move_price *
         static_cast<float>(int{task_.holds(rank, e)} - int{task_.holds(other, e)});
    cost[s] = c;
  }
  for (int s = slots; s < width_; ++s) cost[s] = kBlocked;
}

bool ExchangeSearch::visit(int a, int b, float temperature) {
  const auto width = static_cast<size_t>(width_);
  const float* potential_a = potential_.data() + cell(a);
  const float* potential_b = potential_.data() + cell(b);
  for (size_t k = 0; k < static_cast<size_t>(episodes_); ++k) {
    term_a_[k] = potential_a[k] * scale_[k];
    term_b_[k] = potential_b[k] * scale_[k];
  }
  price(a, b, cost_a_.data());
  price(b, a, cost_b_.data());
  const PairSide side_a{slot_up_.data() + cell(a) * width, slot_down_.data() + cell(a) * width,
                        term_a_.data(), cost_a_.data(), task_.slots_of(a)};
  const PairSide side_b{slot_up_.data() + cell(b) * width, slot_down_.data() + cell(b) * width,
                        term_b_.data(), cost_b_.data(), task_.slots_of(b)};
  const float* noise = nullptr;
  float limit = -1e-7F;
  if (temperature > 0) {
    const uint64_t bits = random_.bits();
    noise = noise_.block(bits);
    limit = temperature * *noise_.block(bits >> 32);
  }
  const PairChoice choice =
      best_exchange_(side_a, side_b, episodes_, width_, limit, noise, temperature);
  if (choice.slot_a < 0) return false;
  exchange(a, choice.slot_a, b, choice.slot_b);
  return true;
}

void ExchangeSearch::exchange(int a, int slot_a, int b, int slot_b) {
  const auto k_count = static_cast<size_t>(episodes_);
  int32_t& in_a = map_[static_cast<size_t>(task_.first_slots[a] + slot_a)];
  int32_t& in_b = map_[static_cast<size_t>(task_.first_slots[b] + slot_b)];
  const auto p = static_cast<size_t>(in_a);
  const auto q = static_cast<size_t>(in_b);
  float* potential_a = potential_.data() + cell(a);
  float* potential_b = potential_.data() + cell(b);
  const float* up_p = up_.data() + p * k_count;
  const float* up_q = up_.data() + q * k_count;
  const float* down_p = down_.data() + p * k_count;
  const float* down_q = down_.data() + q * k_count;
  for (size_t k = 0; k < k_count; ++k) {
    const float new_a = potential_a[k] * (down_p[k] * up_q[k]);
    const float new_b = potential_b[k] * (up_p[k] * down_q[k]);
    sum_[k] += (new_a - potential_a[k]) + (new_b - potential_b[k]);
    potential_a[k] = new_a;
    potential_b[k] = new_b;
    scale_[k] = task_.episodes->weight[k] / (sharpness_ * sum_[k]);
  }
  const auto flip = [&](int rank, size_t out, size_t in) {
    --on_rank(rank, static_cast<int>(out));
    ++on_rank(rank, static_cast<int>(in));
  };
  flip(a, p, q);
  flip(b, q, p);
  std::swap(in_a, in_b);
  write_slot(a, slot_a);
  write_slot(b, slot_b);
}

int ExchangeSearch::sweep(float temperature) {
  int made = 0;
  for (size_t i = order_.size(); i > 1; --i) {
    std::swap(order_[i - 1], order_[random_.below(static_cast<uint32_t>(i))]);
  }
  for (size_t i = 0; i < order_.size(); ++i) {
    for (size_t j = i + 1; j < order_.size(); ++j)
      made += visit(order_[i], order_[j], temperature) ? 1 : 0;
  }
  // Rounding errors grow with the exchanges, far more slowly than this.
  constexpr int kSweepsBetweenSums = 4;
  if (++sweeps_ % kSweepsBetweenSums == 0) sharpen(sharpness_);
  return made;
}

}  // namespace trimtab
