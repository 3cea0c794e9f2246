// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attention/kv_layout.h"
#include "experts/isa.h"
#include "trimtab/tensor.h"

namespace trimtab {
namespace {

struct Shape {
  int64_t length, head_dim;
  int group = 1, key_heads = 1;
  int64_t window = 0;
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
                         .window = shape_.window,
                         .keys = stored_[h].as<float>(),
                         .values = stored_[h].as<float>() + layout_.key_floats(),
                         .positions = layout_.positions,
                         .head_dim = shape_.head_dim});
      }
    }
    const Attention attention(kernels, shape_.head_dim, threads);
    const Buffer memory(attention.workspace_bytes());
    Team team(threads);
    attention.run(tiles, {memory.data(), memory.bytes()}, team);
    return out;
  }

  // A plain softmax in double.
  std::vector<double> expected(int64_t first, int64_t end) const {
    std::vector<double> out;
    const int64_t dim = shape_.head_dim;
    for (int64_t position = first; position < end; ++position) {
      for (int head = 0; head < heads(); ++head) {
        const float* q = q_.data() + position * row_floats() + head * dim;
        const auto &keys = keys_[head / shape_.group], &values = values_[head / shape_.group];
        const int64_t begin =
            shape_.window > 0 ? std::max<int64_t>(0, position + 1 - shape_.window) : 0;
        std::vector<double> scores;
        double top = -std::numeric_limits<double>::infinity();
        for (int64_t p = begin; p <= position; ++p) {
          double score = 0.0;
          for (int64_t d = 0; d < dim; ++d) score += double{q[d]} * double{keys[p * dim + d]};
          scores.push_back(score / std::sqrt(static_cast<double>(dim)));
          top = std::max(top, scores.back());
        }
        std::vector<double> sum(dim);
        double weights = 0.0;
        for (int64_t p = begin; p <= position; ++p) {
          const double weight = std::exp(scores[p - begin] - top);
          weights += weight;
          for (int64_t d = 0; d < dim; ++d) sum[d] += weight * double{values[p * dim + d]};
        }
        for (const double x : sum) out.push_back(x / weights);
      }
    }
    return out;
  }

 private:
  void store(int head) {
    stored_.resize(shape_.key_heads);
    Buffer& buffer = stored_[head];
    if (buffer.bytes() == 0)
      buffer = Buffer((layout_.key_floats() + layout_.value_floats()) * sizeof(float));
    float *const keys = buffer.as<float>(), *const values = keys + layout_.key_floats();
    for (int64_t p = 0; p < shape_.length; ++p) {
      layout_.store_key(keys_[head].data() + p * shape_.head_dim, p, keys);
      layout_.store_value(values_[head].data() + p * shape_.head_dim, p, values);
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

TEST_P(AttentionTest, EqualsAPlainSoftmax) {
  for (const Shape& shape :
       {Shape{1, 2}, Shape{31, 6}, Shape{33, 16, 2, 2}, Shape{300, 24, 3}, Shape{257, 64, 8, 2},
        Shape{700, 128, 4, 1}, Shape{520, 80, 1, 2}, Shape{600, 128, 8, 1, 100},
        Shape{530, 32, 1, 3, 300}, Shape{90, 256, 1, 1, 7}}) {
    const Problem problem(shape);
    const int tile = QueryTile::kMaxRows / shape.group;
    expect_near(problem.run(kernels(), 0, shape.length, tile, 2), problem.expected(0, shape.length),
                "length " + std::to_string(shape.length) + " head_dim " +
                    std::to_string(shape.head_dim) + " window " + std::to_string(shape.window));
  }
}

// One token at a time, many, few threads and many: the tests of equal text depend on it.
TEST_P(AttentionTest, BitsDependOnThePositionAlone) {
  for (const int64_t window : {0, 100, 300}) {
    const Shape shape{900, 40, 4, 2, window};
    const Problem problem(shape);
    const std::vector<float> whole = problem.run(kernels(), 0, 900, 12, 1);
    for (const int tile : {1, 2, 5, 12}) {
      for (const int threads : {1, 3, 16}) {
        for (const int64_t first : {int64_t{0}, int64_t{250}, int64_t{899}}) {
          if (first == 0 && (tile == 1 || threads == 16)) continue;
          const std::vector<float> part = problem.run(kernels(), first, 900, tile, threads);
          const std::vector<float> same(whole.begin() + first * problem.row_floats(), whole.end());
          ASSERT_EQ(part, same) << window << " " << tile << " " << threads << " " << first;
        }
      }
    }
  }
}

TEST_P(AttentionTest, WhatIsNotSeenDoesNoHarm) {
  const Shape shape{400, 32, 2, 1, 50};
  Problem problem(shape);
  const std::vector<double> wanted = problem.expected(300, 310);
  for (const int64_t unseen : {0, 200, 250, 310, 399}) problem.set(unseen, NAN, NAN);
  expect_near(problem.run(kernels(), 300, 310, 10, 2), wanted, "beside NaN");
}

TEST_P(AttentionTest, NaNIsNotLost) {
  const Shape shape{300, 32, 2, 1};
  Problem problem(shape);
  problem.set(5, NAN, 0.0F);
  const std::vector<float> out = problem.run(kernels(), 0, 300, 12, 1);
  for (int64_t p = 0; p < 300; ++p)
    EXPECT_EQ(std::isnan(out[p * problem.row_floats()]), p >= 5) << p;
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  const Shape shape{600, 16};
  Problem problem(shape);
  for (int64_t p = 0; p < 600; ++p) problem.set(p, p % 2 == 0 ? 1e18F : -1e18F, float(p % 2));
  const std::vector<float> out = problem.run(kernels(), 0, 600, 7, 2);
  for (const float x : out) EXPECT_TRUE(x == 0.0F || x == 1.0F) << x;
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest,
                         testing::ValuesIn(available_kernels().begin(), available_kernels().end()),
                         [](const auto& param) { return std::string(param.param->isa); });

}  // namespace
}  // namespace trimtab
