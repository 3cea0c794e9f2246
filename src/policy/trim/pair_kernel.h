// SPDX-License-Identifier: Apache-2.0
// The inner loop of trim: all S x S exchanges between two ranks scored in one pass over the
// episodes.
//
// With the soft peak of episode k written as (1/b) log sum_r exp(b x_rk), exchanging replica i of
// rank a for replica j of rank b multiplies their terms by exp(-b v_i) exp(b v_j) and its inverse,
// so that all exchanges of a pair are two products of small matrices. The logarithm is concave: the
// scores are upper bounds on the change of the soft peak.
//
// Every lane adds up its own exchange, episode by episode, with separate multiplications and
// additions, so that all instruction sets give the same bits.
#pragma once

#include <cstdint>
#include <vector>

namespace trimtab {

// One side of a pair. up[k][j] = exp(b v_jk), down[k][j] = 1 / up[k][j]: [episodes][width], zero
// beyond the rank's slots; term[k] = weight_k / (b S_k) exp(b x_k): [episodes], its share of the
// soft peak.
struct PairSide {
  const float* up = nullptr;
  const float* down = nullptr;
  const float* term = nullptr;
  const float* cost = nullptr;  // [width] added to every exchange of the slot: price of moves;
                                // kBlocked: not allowed
  int slots = 0;
};

struct PairChoice {
  float score = 0;  // change of the soft peak (upper bound) + costs + noise
  int slot_a = -1;
  int slot_b = -1;
};

constexpr float kBlocked = 1e9F;

// The exchange with the least score among all below `limit`; {limit, -1, -1} if there is none.
// Among equal scores the lower slot_a wins, then the lower slot_b. width: as lane_width() gives it.
// noise: [slots of a][width], added times noise_scale; null: none.
using BestExchange = PairChoice (*)(const PairSide& a, const PairSide& b, int episodes, int width,
                                    float limit, const float* noise, float noise_scale);

// The one in the widest instructions of this machine, and all that run on it, for tests.
BestExchange best_exchange();
std::vector<BestExchange> all_best_exchanges();
// The lanes that rows of this many slots take: 4, 8 or a multiple of 16.
int lane_width(int slots);

}  // namespace trimtab
