// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "attention/kv_head.h"
#include "base/test_effort.h"
#include "experts/isa.h"
#include "trimtab/tensor.h"

namespace trimtab {
namespace {

struct Shape {
  int64_t length, head_dim;
  int group = 1, key_heads = 1;
  int64_t window = 0;
  KvFormat format = KvFormat::kF32;
};

// One sequence whose last `tokens` positions are asked for.
class Problem {
 public:
  explicit Problem(const Shape& shape)
      : shape_(shape), layout_(KvLayout::of(shape.length, shape.head_dim)) {
    std::mt19937 random(static_cast<unsigned>(shape.length + shape.head_dim));
    std::normal_distribution<float> normal;
    const auto draw = [&](int64_t n) {
      std::vector<float> values(n);
      for (float& value : values) value = normal(random);
      return values;
    };
    q_ = draw(shape.length * heads() * shape.head_dim);
    for (int h = 0; h < shape.key_heads; ++h) {
      keys_.push_back(draw(shape.length * shape.head_dim));
      values_.push_back(draw(shape.length * shape.head_dim));
      store(h);
    }
  }

  int heads() const { return shape_.group * shape_.key_heads; }
  int64_t row_floats() const { return heads() * shape_.head_dim; }

  // What a position of one head of keys becomes, without what was drawn.
  void set(int64_t position, float key, float value) {
    for (int h = 0; h < shape_.key_heads; ++h) {
      for (int64_t d = 0; d < shape_.head_dim; ++d) {
        keys_[h][position * shape_.head_dim + d] = key;
        values_[h][position * shape_.head_dim + d] = value;
      }
      store(h);
    }
  }

  // The positions [first, end), cut into tiles of tile_tokens, by a team of `threads`.
  std::vector<float> run(const AttentionKernels& kernels, int64_t first, int64_t end,
                         int tile_tokens, int threads) const {
    std::vector<float> out((end - first) * row_floats(), NAN);
    std::vector<QueryTile> tiles;
    for (int64_t begin = first; begin < end; begin += tile_tokens) {
      const auto tokens = static_cast<int>(std::min<int64_t>(tile_tokens, end - begin));
      for (int h = 0; h < shape_.key_heads; ++h) {
        const int64_t head = int64_t{h} * shape_.group * shape_.head_dim;
        tiles.push_back({.q = q_.data() + begin * row_floats() + head,
                         .q_stride = row_floats(),
                         .out = out.data() + (begin - first) * row_floats() + head,
                         .out_stride = row_floats(),
                         .rows = tokens * shape_.group,
                         .group = shape_.group,
                         .position = begin,
                         .window = shape_.window});
        head_of(h).give(tiles.back());
      }
    }
    const Attention attention(kernels, shape_.head_dim, threads);
    const Buffer memory(attention.workspace_bytes());
    Team team(threads);
    attention.run(tiles, {memory.data(), memory.bytes()}, team);
    return out;
  }

  // A plain softmax in double, of the keys and values as the format keeps them, or, exactly, as
  // they were drawn.
  std::vector<double> expected(int64_t first, int64_t end, bool exact = false) const {
    std::vector<double> out;
    std::vector<std::vector<double>> all_keys, all_values;
    for (int h = 0; h < shape_.key_heads; ++h) {
      all_keys.push_back(kept(keys_[h], exact));
      all_values.push_back(kept(values_[h], exact));
    }
    const int64_t dim = shape_.head_dim;
    for (int64_t position = first; position < end; ++position) {
      for (int head = 0; head < heads(); ++head) {
        const float* q = q_.data() + position * row_floats() + head * dim;
        const auto &keys = all_keys[head / shape_.group], &values = all_values[head / shape_.group];
        const int64_t begin =
            shape_.window > 0 ? std::max<int64_t>(0, position + 1 - shape_.window) : 0;
        std::vector<double> scores;
        double top = -std::numeric_limits<double>::infinity();
        for (int64_t p = begin; p <= position; ++p) {
          double score = 0.0;
          const double* const key = keys.data() + p * dim;
          for (int64_t d = 0; d < dim; ++d) score += double{q[d]} * key[d];
          scores.push_back(score / std::sqrt(static_cast<double>(dim)));
          top = std::max(top, scores.back());
        }
        std::vector<double> sum(dim);
        double weights = 0.0;
        for (int64_t p = begin; p <= position; ++p) {
          const double weight = std::exp(scores[p - begin] - top);
          weights += weight;
          const double* const value = values.data() + p * dim;
          double* const to = sum.data();
          for (int64_t d = 0; d < dim; ++d) to[d] += weight * value[d];
        }
        for (const double x : sum) out.push_back(x / weights);
      }
    }
    return out;
  }

  // The largest difference that rounding keys and values may make to an output. A score is off by
  // at most e, the sum of |q| times what each element of a key may be off, so a weight by a factor
  // of at most exp(2 e) after the division by their sum; and a value is off by its own rounding.
  double bound() const {
    const int64_t dim = shape_.head_dim;
    double scores = 0.0, values = 0.0, largest = 0.0;
    for (int head = 0; head < heads(); ++head) {
      const auto& keys = keys_[head / shape_.group];
      std::vector<double> most_q(dim);
      for (int64_t t = 0; t < shape_.length; ++t) {
        for (int64_t d = 0; d < dim; ++d) {
          const double q = q_[t * row_floats() + head * dim + d];
          most_q[d] = std::max(most_q[d], std::abs(q));
        }
      }
      for (int64_t p = 0; p < shape_.length; ++p) {
        double sum = 0.0;
        for (int64_t d = 0; d < dim; ++d) sum += most_q[d] * rounding(keys, p, d);
        scores = std::max(scores, sum / std::sqrt(static_cast<double>(dim)));
      }
    }
    for (const auto& of_head : values_) {
      for (int64_t i = 0; i < std::ssize(of_head); ++i) {
        values = std::max(values, rounding(of_head, i / dim, i % dim));
        largest = std::max(largest, std::abs(double{of_head[i]}));
      }
    }
    return std::expm1(2 * scores) * largest + values;
  }

 private:
  double most(const std::vector<float>& vectors, int64_t position) const {
    double most = 0.0;
    for (int64_t d = 0; d < shape_.head_dim; ++d)
      most = std::max(most, std::abs(double{vectors[position * shape_.head_dim + d]}));
    return most;
  }
  // By how much an element may be off: half of the last of 8 bits, or half of a 127th of the
  // largest element.
  double rounding(const std::vector<float>& vectors, int64_t position, int64_t d) const {
    const double x = vectors[position * shape_.head_dim + d];
    if (shape_.format == KvFormat::kBF16) return std::abs(x) * 0x1p-8;
    return shape_.format == KvFormat::kI8 ? most(vectors, position) / 127 * 0.501 : 0.0;
  }
  std::vector<double> kept(const std::vector<float>& vectors, bool exact) const {
    std::vector<double> out(vectors.begin(), vectors.end());
    if (exact || shape_.format == KvFormat::kF32) return out;
    for (int64_t i = 0; i < std::ssize(out); ++i) {
      if (shape_.format == KvFormat::kBF16) {
        int exponent = 0;
        const double part = std::frexp(out[i], &exponent);
        out[i] = std::ldexp(std::nearbyint(part * 256), exponent - 8);
      } else {
        const float scale = static_cast<float>(most(vectors, i / shape_.head_dim)) / 127.0F;
        const float inverse = 1.0F / scale;
        out[i] = std::nearbyint(vectors[i] * inverse) * double{scale};
      }
    }
    return out;
  }

  KvHead head_of(int head) const { return {stored_[head].data(), layout_, shape_.format}; }

  void store(int head) {
    stored_.resize(shape_.key_heads);
    if (stored_[head].bytes() == 0) stored_[head] = Buffer(KvHead::bytes(layout_, shape_.format));
    for (int64_t p = 0; p < shape_.length; ++p) {
      head_of(head).store(keys_[head].data() + p * shape_.head_dim,
                          values_[head].data() + p * shape_.head_dim, p);
    }
  }

  Shape shape_;
  KvLayout layout_;
  std::vector<float> q_;
  std::vector<std::vector<float>> keys_, values_;  // [key heads][length * head_dim]
  std::vector<Buffer> stored_;
};

void expect_near(const std::vector<float>& got, const std::vector<double>& wanted,
                 const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 2e-5) << what << " " << i;
}

class AttentionTest : public testing::TestWithParam<const GemmKernels*> {
 protected:
  const AttentionKernels& kernels() const { return attention_kernels(GetParam()->isa); }
};

constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBF16, KvFormat::kI8};

// Computed once for all instruction sets: under the sanitizers it takes most of a test's time.
const std::vector<double>& plain_softmax(const Problem& problem, const Shape& shape) {
  using Key = std::tuple<int64_t, int64_t, int, int, int64_t, KvFormat>;
  static std::map<Key, std::vector<double>> known;
  const Key key(shape.length, shape.head_dim, shape.group, shape.key_heads, shape.window,
                shape.format);
  const auto [at, is_new] = known.try_emplace(key);
  if (is_new) at->second = problem.expected(0, shape.length);
  return at->second;
}

void expect_plain_softmax(const AttentionKernels& kernels, std::initializer_list<Shape> shapes) {
  for (Shape shape : shapes) {
    for (const KvFormat format : kFormats) {
      shape.format = format;
      const Problem problem(shape);
      const int tile = QueryTile::kMaxRows / shape.group;
      expect_near(problem.run(kernels, 0, shape.length, tile, 2), plain_softmax(problem, shape),
                  "length " + std::to_string(shape.length) + " head_dim " +
                      std::to_string(shape.head_dim) + " window " + std::to_string(shape.window) +
                      " " + std::string(name(format)));
    }
  }
}

TEST_P(AttentionTest, EqualsAPlainSoftmax) {
  expect_plain_softmax(kernels(), {{1, 2},
                                   {31, 6},
                                   {33, 16, 2, 2},
                                   {300, 24, 3},
                                   {257, 64, 8, 2},
                                   {520, 80, 1, 2},
                                   {530, 32, 1, 3, 300},
                                   {90, 256, 1, 1, 7}});
}

// Apart, since an emulator takes minutes for them.
TEST_P(AttentionTest, LongOnesEqualAPlainSoftmax) {
  expect_plain_softmax(kernels(), {{700, 128, 4, 1}, {600, 128, 8, 1, 100}});
}

TEST_P(AttentionTest, RoundedCachesStayWithinTheirBound) {
  for (const KvFormat format : {KvFormat::kBF16, KvFormat::kI8}) {
    const Problem problem({300, 128, 4, 2, 0, format});
    const std::vector<float> out = problem.run(kernels(), 0, 300, 12, 2);
    const std::vector<double> exact = problem.expected(0, 300, true);
    double worst = 0.0;
    for (size_t i = 0; i < out.size(); ++i) worst = std::max(worst, std::abs(out[i] - exact[i]));
    EXPECT_LE(worst, problem.bound()) << name(format);
    EXPECT_GT(worst, 1e-3) << name(format);
  }
}

// One token at a time, many, few threads and many: the tests of equal text depend on it.
TEST_P(AttentionTest, BitsDependOnThePositionAlone) {
  size_t turn = 0;
  for (const Shape& shape :
       {Shape{900, 40, 4, 2, 0}, Shape{900, 40, 4, 2, 100}, Shape{900, 40, 4, 2, 300},
        Shape{900, 40, 4, 2, 0, KvFormat::kBF16}, Shape{900, 40, 4, 2, 300, KvFormat::kI8}}) {
    // Under a sanitizer the first and the last: a minute for all of them.
    if (turn++ % 4 != 0 && few_cases()) continue;
    const Problem problem(shape);
    const std::vector<float> whole = problem.run(kernels(), 0, 900, 12, 1);
    struct Way {
      int tile, threads;
      int64_t first;
    };
    for (const auto [tile, threads, first] :
         {Way{5, 1, 0}, Way{12, 3, 0}, Way{1, 1, 250}, Way{2, 3, 250}, Way{5, 16, 250},
          Way{1, 16, 899}, Way{2, 3, 899}, Way{12, 1, 899}}) {
      const std::vector<float> part = problem.run(kernels(), first, 900, tile, threads);
      const std::vector<float> same(whole.begin() + first * problem.row_floats(), whole.end());
      ASSERT_EQ(part, same) << shape.window << " " << name(shape.format) << " " << tile << " "
                            << threads << " " << first;
    }
  }
}

TEST_P(AttentionTest, WhatIsNotSeenDoesNoHarm) {
  for (const KvFormat format : kFormats) {
    Problem problem({400, 32, 2, 1, 50, format});
    const std::vector<double> wanted = problem.expected(300, 310);
    for (const int64_t unseen : {0, 200, 250, 310, 399}) problem.set(unseen, NAN, NAN);
    expect_near(problem.run(kernels(), 300, 310, 10, 2), wanted, "beside NaN");
  }
}

TEST_P(AttentionTest, NaNIsNotLost) {
  for (const KvFormat format : kFormats) {
    Problem problem({300, 32, 2, 1, 0, format});
    problem.set(5, NAN, 0.0F);
    const std::vector<float> out = problem.run(kernels(), 0, 300, 12, 1);
    for (int64_t p = 0; p < 300; ++p)
      EXPECT_EQ(std::isnan(out[p * problem.row_floats()]), p >= 5) << p << " " << name(format);
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  for (const KvFormat format : kFormats) {
    Problem problem({600, 16, 1, 1, 0, format});
    for (int64_t p = 0; p < 600; ++p) problem.set(p, p % 2 == 0 ? 1e18F : -1e18F, float(p % 2));
    const std::vector<float> out = problem.run(kernels(), 0, 600, 7, 2);
    for (const float x : out) EXPECT_TRUE(std::abs(x) < 1e-6F || std::abs(x - 1) < 1e-6F) << x;
  }
}

// Keys and values of zeros, and numbers so small that an int8 code has no scale.
TEST_P(AttentionTest, SmallKeysAndValues) {
  for (const KvFormat format : kFormats) {
    Problem problem({40, 16, 1, 1, 0, format});
    for (int64_t p = 0; p < 40; ++p) problem.set(p, p % 2 == 0 ? 0.0F : 1e-44F, 1e-41F);
    for (const float x : problem.run(kernels(), 0, 40, 7, 1)) EXPECT_LE(std::abs(x), 2e-41F) << x;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest,
                         testing::ValuesIn(available_kernels().begin(), available_kernels().end()),
                         [](const auto& param) { return std::string(param.param->isa); });

}  // namespace
}  // namespace trimtab
