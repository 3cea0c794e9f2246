// SPDX-License-Identifier: Apache-2.0
// The body of pair_kernel.h, compiled once for each instruction set inside its own namespace, which
// says how many floats a register holds: kNativeLanes.

// Below every index, so that an equal score does not replace `limit`.
constexpr int32_t kNoIndex = -1;

// Vectors of the compiler (GCC, Clang): any width works everywhere, in as many registers as it
// takes.
template <int kWidth>
struct Lanes {
  using Float [[gnu::vector_size(kWidth * sizeof(float))]] = float;
  using Int [[gnu::vector_size(kWidth * sizeof(int32_t))]] = int32_t;
};

template <int kWidth>
[[gnu::always_inline]] inline typename Lanes<kWidth>::Float load(const float* from) {
  typename Lanes<kWidth>::Float v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

template <int kWidth>
struct Best {
  typename Lanes<kWidth>::Float score;
  typename Lanes<kWidth>::Int index;  // slot_a * width + slot_b
};

template <int kWidth>
[[gnu::always_inline]] inline void keep_better(typename Lanes<kWidth>::Float score,
                                               typename Lanes<kWidth>::Int index,
                                               Best<kWidth>& best) {
  const typename Lanes<kWidth>::Int better =
      (score < best.score) | ((score == best.score) & (index < best.index));
  best.score = better ? score : best.score;
  best.index = better ? index : best.index;
}

// Scores of kRows slots of rank a against kWidth slots of rank b.
template <int kWidth, int kRows>
[[gnu::always_inline]] inline void score_rows(const PairSide& a, const PairSide& b, int episodes,
                                              int width, int row, int column, const float* noise,
                                              float noise_scale, float base, Best<kWidth>& best) {
  using Float = typename Lanes<kWidth>::Float;
  using Int = typename Lanes<kWidth>::Int;
  Float sum[kRows];
  for (int i = 0; i < kRows; ++i) sum[i] = Float{};
  for (int k = 0; k < episodes; ++k) {
    const Float in_a = load<kWidth>(b.up + k * width + column) * a.term[k];
    const Float in_b = load<kWidth>(b.down + k * width + column) * b.term[k];
    const float* down_a = a.down + k * width + row;
    const float* up_a = a.up + k * width + row;
    for (int i = 0; i < kRows; ++i) sum[i] = sum[i] + (in_a * down_a[i] + in_b * up_a[i]);
  }
  const Float cost_b = load<kWidth>(b.cost + column);
  Int lane;
  for (int j = 0; j < kWidth; ++j) lane[j] = column + j;
  for (int i = 0; i < kRows; ++i) {
    Float score = (sum[i] - base) + (cost_b + a.cost[row + i]);
    if (noise != nullptr)
      score = score + load<kWidth>(noise + (row + i) * width + column) * noise_scale;
    const Int index = lane + (row + i) * width;
    keep_better<kWidth>(score, index, best);
  }
}

// Scores of kBlocks x kWidth slots of rank a, lane by lane, against one slot of rank b: what is
// left over when the slots of b are one more than a multiple of the lanes, as with one redundant
// expert a rank.
template <int kWidth, int kBlocks>
[[gnu::always_inline]] inline void score_column(const PairSide& a, const PairSide& b, int episodes,
                                                int width, int row, int column, const float* noise,
                                                float noise_scale, float base, Best<kWidth>& best) {
  using Float = typename Lanes<kWidth>::Float;
  Float sum[kBlocks];
  for (int i = 0; i < kBlocks; ++i) sum[i] = Float{};
  for (int k = 0; k < episodes; ++k) {
    const float in_a = b.up[k * width + column] * a.term[k];
    const float in_b = b.down[k * width + column] * b.term[k];
    for (int i = 0; i < kBlocks; ++i) {
      const int at = k * width + row + i * kWidth;
      sum[i] = sum[i] + (load<kWidth>(a.down + at) * in_a + load<kWidth>(a.up + at) * in_b);
    }
  }
  for (int i = 0; i < kBlocks; ++i) {
    const int first = row + i * kWidth;
    Float score = (sum[i] - base) + (load<kWidth>(a.cost + first) + b.cost[column]);
    typename Lanes<kWidth>::Int index;
    Float added = Float{};
    for (int j = 0; j < kWidth; ++j) {
      index[j] = (first + j) * width + column;
      if (noise != nullptr && first + j < a.slots) added[j] = noise[index[j]];
    }
    if (noise != nullptr) score = score + added * noise_scale;
    keep_better<kWidth>(score, index, best);
  }
}

template <int kWidth>
PairChoice best_exchange_of(const PairSide& a, const PairSide& b, int episodes, float limit,
                            const float* noise, float noise_scale, int width) {
  // Four sums, so that one addition need not wait for the one before.
  float part[4] = {0, 0, 0, 0};
  for (int k = 0; k < episodes; ++k) part[k % 4] = part[k % 4] + (a.term[k] + b.term[k]);
  const float base = (part[0] + part[1]) + (part[2] + part[3]);
  Best<kWidth> best;
  for (int j = 0; j < kWidth; ++j) {
    best.score[j] = limit;
    best.index[j] = kNoIndex;
  }
  int column = 0;
  for (; column + 1 < b.slots; column += kWidth) {
    for (int row = 0; row < a.slots;) {
      const int left = a.slots - row;
      const int blocks = (left + 4) / 5;
      const int rows = (left + blocks - 1) / blocks;
      const auto score = [&](auto count) __attribute__((always_inline)) {
        score_rows<kWidth, decltype(count)::value>(a, b, episodes, width, row, column, noise,
                                                   noise_scale, base, best);
      };
      switch (rows) {
        case 1:
          score(std::integral_constant<int, 1>());
          break;
        case 2:
          score(std::integral_constant<int, 2>());
          break;
        case 3:
          score(std::integral_constant<int, 3>());
          break;
        case 4:
          score(std::integral_constant<int, 4>());
          break;
        default:
          score(std::integral_constant<int, 5>());
          break;
      }
      row += rows;
    }
  }
  if (column < b.slots) {
    int row = 0;
    for (; row + kWidth < a.slots; row += 2 * kWidth) {
      score_column<kWidth, 2>(a, b, episodes, width, row, column, noise, noise_scale, base, best);
    }
    if (row < a.slots) {
      score_column<kWidth, 1>(a, b, episodes, width, row, column, noise, noise_scale, base, best);
    }
  }
  PairChoice choice{limit, -1, -1};
  int32_t chosen = kNoIndex;
  for (int j = 0; j < kWidth; ++j) {
    if (best.index[j] == kNoIndex || best.score[j] > choice.score) continue;
    if (best.score[j] == choice.score && best.index[j] > chosen) continue;
    chosen = best.index[j];
    choice = {best.score[j], chosen / width, chosen % width};
  }
  return choice;
}

PairChoice best_exchange(const PairSide& a, const PairSide& b, int episodes, int width, float limit,
                         const float* noise, float noise_scale) {
  if (width == 4) return best_exchange_of<4>(a, b, episodes, limit, noise, noise_scale, width);
  // Nine slots: eight lanes and one slot over are less work than sixteen lanes.
  if ((width == 8 || b.slots == 9) && kNativeLanes >= 8) {
    return best_exchange_of<8>(a, b, episodes, limit, noise, noise_scale, width);
  }
  return best_exchange_of<kNativeLanes>(a, b, episodes, limit, noise, noise_scale, width);
}
