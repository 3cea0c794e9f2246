// SPDX-License-Identifier: Apache-2.0
#include "policy/trim/token_planes.h"

#include <algorithm>
#include <bit>

#include "base/random.h"
#include "trimtab/table.h"

namespace trimtab {
namespace baseline {
#include "policy/trim/token_planes_impl.h"
}  // namespace baseline

namespace avx2 {
int64_t change(uint64_t* planes, int words, int num_planes, const PlaneChange* changes,
               int num_changes, bool keep);
}
namespace avx512 {
int64_t change(uint64_t* planes, int words, int num_planes, const PlaneChange* changes,
               int num_changes, bool keep);
}

std::vector<PlaneKernel> all_plane_kernels() {
  std::vector<PlaneKernel> all = {baseline::change};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("popcnt") != 0)
    all.push_back(avx2::change);
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vpopcntdq") != 0)
    all.push_back(avx512::change);
#endif
  return all;
}

PlaneKernel plane_kernel() {
  return all_plane_kernels().back();
}

namespace {

// The fewest planes for numbers up to `picks` that kernels are made for.
int planes_for(int picks) {
  const int planes = static_cast<int>(std::bit_width(cells(picks)));
  return planes <= 2 ? 2 : planes <= 4 ? planes : kMostPlanes;
}

}  // namespace

TokenPlanes::TokenPlanes(const TokenSample& tokens, int layer,
                         std::span<const int32_t> node_of_rank, int num_nodes, int64_t max_tokens)
    : nodes_(num_nodes),
      num_planes_(planes_for(tokens.top_k)),
      kernel_(plane_kernel()),
      first_plane_(cells(num_nodes, num_nodes)),
      cost_of_(cells(num_nodes, num_nodes)),
      ways_(tokens.num_experts, num_nodes) {
  take_tokens(tokens, layer, node_of_rank, max_tokens);
  size_t size = 0;
  for (int source = 0; source < nodes_; ++source) {
    for (int to = 0; to < nodes_; ++to) {
      first_plane_[cells(source, nodes_) + cells(to)] = size;
      if (to != source) size += cells(2 * num_planes_, words_[cells(source)]);
    }
  }
  planes_.resize(size);
}

void TokenPlanes::take_tokens(const TokenSample& tokens, int layer,
                              std::span<const int32_t> node_of_rank, int64_t max_tokens) {
  constexpr int kBlock = 8 * 64;  // the kernel takes so many tokens at once
  const bool known = !tokens.source_rank.empty();
  const int64_t most = std::max<int64_t>(1, max_tokens);
  const int64_t stride = std::max<int64_t>(1, (tokens.num_tokens() + most - 1) / most);
  std::vector<std::vector<int64_t>> of_source(known ? cells(nodes_) : 1);
  for (int64_t t = 0; t < tokens.num_tokens(); t += stride) {
    const size_t source = known ? cells(node_of_rank[cells(tokens.source_rank[cells(t)])]) : 0;
    of_source[source].push_back(t);
    copy_of_all_ += 4.0 * (known ? 1 : nodes_);
  }
  int words = 0;
  for (const std::vector<int64_t>& list : of_source) {
    first_word_.push_back(words);
    words_.push_back(static_cast<int>((std::ssize(list) + kBlock - 1) / kBlock * 8));
    words += words_.back();
  }
  members_ = Matrix<uint64_t>(tokens.num_experts, words, 0);
  for (size_t source = 0; source < of_source.size(); ++source) {
    int64_t bit = int64_t{64} * first_word_[source];
    for (const int64_t t : of_source[source]) {
      for (const int32_t e : tokens.picks(t, layer))
        members_(e, bit / 64) |= uint64_t{1} << static_cast<unsigned>(bit % 64);
      ++bit;
    }
  }
  if (known) return;
  first_word_.resize(cells(nodes_), first_word_[0]);
  words_.resize(cells(nodes_), words_[0]);
}

int64_t TokenPlanes::change_of(std::span<const int32_t> experts, const Matrix<int32_t>& on_node) {
  new_ways_.clear();
  changes_.clear();
  for (const int32_t e : experts) {
    holders_.clear();
    for (int node = 0; node < nodes_; ++node) {
      if (on_node(e, node) > 0) holders_.push_back(node);
    }
    for (int source = 0; source < nodes_; ++source) {
      const Way now = on_node(e, source) > 0 ? Way{} : way(e, source);
      const Way before = ways_(e, source);
      if (now == before) continue;
      new_ways_.push_back({e, source, now});
      list_changes(e, source, before, false);
      list_changes(e, source, now, true);
    }
  }
  std::ranges::sort(changes_, {}, &PairChange::pair);
  return run(false);
}

void TokenPlanes::keep() {
  for (const WayChange& change : new_ways_) ways_(change.expert, change.source) = change.way;
  cost_ += run(true);
}

TokenPlanes::Way TokenPlanes::way(int32_t expert, int32_t source) const {
  const size_t n = holders_.size();
  if (n == 0) return {};
  if (n == 1) return {static_cast<int16_t>(holders_[0]), -1};
  // Chance decides, so that the choices of two experts agree no more often than they should.
  const size_t draw = split_mix64(cells(expert, nodes_) + cells(source)) % n;
  return {static_cast<int16_t>(holders_[draw]), static_cast<int16_t>(holders_[(draw + n / 2) % n])};
}

void TokenPlanes::list_changes(int32_t expert, int32_t source, Way way, bool add) {
  for (const int16_t to : {way.first, way.second}) {
    if (to >= 0) changes_.push_back({source * nodes_ + to, expert, way.second >= 0, add});
  }
}

int64_t TokenPlanes::run(bool keep) {
  int64_t change = 0;
  for (auto i = changes_.begin(); i != changes_.end();) {
    const int32_t pair = i->pair, source = pair / nodes_;
    of_pair_.clear();
    for (; i != changes_.end() && i->pair == pair; ++i)
      of_pair_.push_back({members(i->expert, source), i->half, i->add});
    int64_t& cost = cost_of_[cells(pair)];
    const int64_t now =
        kernel_(planes_.data() + first_plane_[cells(pair)], words_[cells(source)], num_planes_,
                of_pair_.data(), static_cast<int>(std::ssize(of_pair_)), keep);
    change += now - cost;
    if (keep) cost = now;
  }
  return change;
}

}  // namespace trimtab
