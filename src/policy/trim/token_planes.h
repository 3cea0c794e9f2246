// SPDX-License-Identifier: Apache-2.0
// Counts, for many tokens at once, the copies that go between nodes while experts change places.
//
// For a source node and another node, each sampled token has two small numbers: how many of its
// picks go there for certain, and how many with probability one half. Bit i of 64 such numbers lies
// in one word, so that a few instructions add a pick of an expert to 64 tokens. A token's cost, in
// quarters of a copy, is 4 where a pick is certain, else 2 for one half and 3 for more.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/matrix.h"
#include "trimtab/traffic.h"

namespace trimtab {

// One pick is added to, or taken from, the tokens of `members` (a bit for each token).
struct PlaneChange {
  const uint64_t* members = nullptr;
  bool half = false;  // with probability one half; else for certain
  bool add = true;
};

// planes: [2 x num_planes, words], the bits of the numbers of certain picks, then of halves. words:
// a multiple of 8; num_planes: 2, 3, 4 or kMostPlanes. Returns what all tokens cost with the
// changes, which are kept or not.
using PlaneKernel = int64_t (*)(uint64_t* planes, int words, int num_planes,
                                const PlaneChange* changes, int num_changes, bool keep);

// The one in the widest instructions of this machine, and all that run on it, for tests.
PlaneKernel plane_kernel();
std::vector<PlaneKernel> all_plane_kernels();
constexpr int kMostPlanes = 8;
constexpr int kMostPicksOfPlanes = (1 << kMostPlanes) - 1;

class TokenPlanes {
 public:
  // At first no expert has a node. max_tokens: so many of the sample are looked at, spread evenly.
  // tokens.top_k is at most kMostPicksOfPlanes.
  TokenPlanes(const TokenSample& tokens, int layer, std::span<const int32_t> node_of_rank,
              int num_nodes, int64_t max_tokens);

  // What all tokens cost now, and what one copy of every token costs.
  int64_t cost() const { return cost_; }
  double copy_of_all() const { return copy_of_all_; }

  // Returns by how much the cost changes if the experts have their replicas on these nodes.
  // on_node: [all experts, nodes] the numbers of replicas.
  int64_t change_of(std::span<const int32_t> experts, const Matrix<int32_t>& on_node);
  // Makes the change that change_of() was last asked for.
  void keep();

 private:
  // Where picks of an expert from one source node go: to its own node (none), to one other, or to
  // two others by halves. More than two are taken for two of them.
  struct Way {
    int16_t first = -1, second = -1;
    bool operator==(const Way&) const = default;
  };
  struct WayChange {
    int32_t expert, source;
    Way way;
  };
  struct PairChange {
    int32_t pair, expert;
    bool half, add;
  };
  struct PairCost {
    int32_t pair;
    int64_t cost;
  };

  void take_tokens(const TokenSample& tokens, int layer, std::span<const int32_t> node_of_rank,
                   int64_t max_tokens);
  Way way(int32_t expert, int32_t source) const;  // by holders_
  void list_changes(int32_t expert, int32_t source, Way way, bool add);
  // Calls the kernel for every pair that changes.
  int64_t run(bool keep);
  const uint64_t* members(int32_t expert, int32_t source) const {
    return members_[expert].data() + first_word_[cells(source)];
  }

  const int nodes_, num_planes_;
  const PlaneKernel kernel_;
  // The words of a source's tokens in a row of members_; where sources are not known, all have all.
  std::vector<int32_t> first_word_, words_;  // [nodes]
  Matrix<uint64_t> members_;                 // [experts, words] the tokens that pick it
  std::vector<uint64_t> planes_;             // [source, node][2 x num_planes, words of the source]
  std::vector<size_t> first_plane_;          // [source, node]
  std::vector<int64_t> cost_of_;             // [source, node]
  Matrix<Way> ways_;                         // [experts, sources]
  int64_t cost_ = 0;
  double copy_of_all_ = 0;

  std::vector<WayChange> new_ways_;  // what keep() makes
  std::vector<PairChange> changes_;  // by ascending pair
  std::vector<PlaneChange> of_pair_;
  std::vector<int32_t> holders_;
};

}  // namespace trimtab
