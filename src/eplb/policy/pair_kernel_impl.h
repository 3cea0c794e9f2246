// SPDX-License-Identifier: Apache-2.0
// The body of pair_kernel.h, compiled once for each instruction set inside its own namespace, which says how many
// floats a register holds: kNativeLanes.

constexpr int32_t kNoIndex = -1;  // below every index, so that an equal score does not replace `limit`

// Vectors of the compiler (GCC, Clang): any width works everywhere, in as many registers as it takes.
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

// Scores of kRows slots of rank a against kWidth slots of rank b.
template <int kWidth, int kRows>
[[gnu::always_inline]] inline void score_rows(const PairSide& a, const PairSide& b, const float* down_a,
                                              const float* down_b, int episodes, int width, int row, int column,
                                              const float* noise, float noise_scale, float base, Best<kWidth>& best) {
  using Float = typename Lanes<kWidth>::Float;
  using Int = typename Lanes<kWidth>::Int;
  Float sum[kRows];
  for (int i = 0; i < kRows; ++i) sum[i] = Float{};
  for (int k = 0; k < episodes; ++k) {
    const Float up_b = load<kWidth>(b.up + k * width + column);
    const Float gone_b = load<kWidth>(down_b + k * width + column);
    const float* gone_a = down_a + k * width + row;
    const float* up_a = a.up + k * width + row;
    for (int i = 0; i < kRows; ++i) sum[i] = sum[i] + (up_b * gone_a[i] + gone_b * up_a[i]);
  }
  const Float cost_b = load<kWidth>(b.cost + column);
  Int lane;
  for (int j = 0; j < kWidth; ++j) lane[j] = column + j;
  for (int i = 0; i < kRows; ++i) {
    Float score = (sum[i] - base) + (cost_b + a.cost[row + i]);
    if (noise != nullptr) score = score + load<kWidth>(noise + (row + i) * width + column) * noise_scale;
    const Int index = lane + (row + i) * width;
    const Int better = (score < best.score) | ((score == best.score) & (index < best.index));
    best.score = better ? score : best.score;
    best.index = better ? index : best.index;
  }
}

template <int kWidth>
PairChoice best_exchange_of(const PairSide& a, const PairSide& b, int episodes, float limit, const float* noise,
                            float noise_scale, float* scratch, int width) {
  using Float = typename Lanes<kWidth>::Float;
  float* down_a = scratch;
  float* down_b = scratch + episodes * width;
  float base = 0;
  for (int k = 0; k < episodes; ++k) {
    for (int c = 0; c < width; c += kWidth) {
      const Float gone_a = load<kWidth>(a.down + k * width + c) * a.term[k];
      const Float gone_b = load<kWidth>(b.down + k * width + c) * b.term[k];
      __builtin_memcpy(down_a + k * width + c, &gone_a, sizeof(gone_a));
      __builtin_memcpy(down_b + k * width + c, &gone_b, sizeof(gone_b));
    }
    base = base + (a.term[k] + b.term[k]);
  }
  Best<kWidth> best;
  for (int j = 0; j < kWidth; ++j) {
    best.score[j] = limit;
    best.index[j] = kNoIndex;
  }
  for (int column = 0; column < b.slots; column += kWidth) {
    for (int row = 0; row < a.slots;) {
      const int left = a.slots - row;
      const int blocks = (left + 4) / 5;
      const int rows = (left + blocks - 1) / blocks;
      const auto score = [&](auto count) __attribute__((always_inline)) {
        score_rows<kWidth, decltype(count)::value>(a, b, down_a, down_b, episodes, width, row, column, noise,
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

PairChoice best_exchange(const PairSide& a, const PairSide& b, int episodes, int width, float limit, const float* noise,
                         float noise_scale, float* scratch) {
  if (width == 4) return best_exchange_of<4>(a, b, episodes, limit, noise, noise_scale, scratch, width);
  if (width == 8 && kNativeLanes >= 8) {
    return best_exchange_of<8>(a, b, episodes, limit, noise, noise_scale, scratch, width);
  }
  return best_exchange_of<kNativeLanes>(a, b, episodes, limit, noise, noise_scale, scratch, width);
}
