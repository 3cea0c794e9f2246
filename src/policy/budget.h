// SPDX-License-Identifier: Apache-2.0
// Spends one budget of moves over all layers. Every layer offers placements, each with the moves
// that it costs and what it gains; at most one offer of a layer is taken.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trimtab {

// One way to change a layer: the experts that ranks must receive for it, and what it gains.
struct Offer {
  int64_t moves = 0;
  double gain = 0;
};

// Leaves the offers that no other offer of the layer beats with as many moves or fewer, by
// ascending moves, and thins out those with many moves so that about `most` remain. Returns their
// indices in `offers`. Offers that gain nothing are left out.
std::vector<int> worthwhile(std::span<const Offer> offers, int most);

class Budget {
 public:
  // layers: the offers of each layer, as worthwhile() leaves them. The answers are for up to
  // max_moves moves, in up to max_layers layers.
  Budget(std::vector<std::vector<Offer>> layers, int64_t max_moves, int64_t max_layers);

  // The moves that max_moves leaves and that layers can use.
  int64_t most_moves() const { return most_moves_; }

  // Chooses the offers with the largest sum of gains that cost up to max_moves moves, at most
  // most_moves(): [layers], -1 for a layer that stays as it is. The choice is exact (dynamic
  // programming) while the table of layers x moves x layers to change is small enough. Beyond that
  // it goes along the concave hull of each layer's offers by gain per move, and then gives what is
  // left to the offers that gain most from it.
  std::vector<int> choose(int64_t max_moves) const;

 private:
  void fill_table();
  std::vector<int> from_table(int64_t max_moves) const;
  std::vector<int> along_hulls(int64_t max_moves) const;
  std::vector<int> greedy(int64_t max_moves, const std::vector<bool>& may_change) const;
  int64_t cells_of_layer() const { return (most_layers_ + 1) * (most_moves_ + 1); }

  const std::vector<std::vector<Offer>> layers_;
  const int64_t max_layers_;
  int64_t most_moves_ = 0;
  int64_t most_layers_ = 0;      // dimension of the table; 0: any number of layers may change
  std::vector<int16_t> choice_;  // [layers][layers to change][moves], -1: none; empty: no table
};

}  // namespace trimtab
