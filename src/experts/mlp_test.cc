// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "experts/test_mlp.h"
#include "trimtab/error.h"

namespace trimtab::test {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

// A sum in double, and the bound of its error in f32.
std::pair<double, double> product(const TestRows& x, int64_t i, const MatrixSource& w, int64_t j,
                                  const VectorSource& bias, DType dtype) {
  double sum = bias.data == nullptr ? 0.0 : static_cast<double>(bias.at(j)),
         magnitudes = std::abs(sum);
  for (int64_t k = 0; k < w.cols; ++k) {
    const double term = static_cast<double>(x.at(i, k)) * stored(w.at(j, k), dtype);
    sum += term;
    magnitudes += std::abs(term);
  }
  return {sum, sum_bound(w.cols, magnitudes)};
}

class MlpTest : public EachIsa {
 protected:
  // silu. With errors dg, du of gate and up: |silu'| < 1.1 and |silu(g)| <= |g|, a few roundings of
  // the result, and its rounding to bf16.
  static void expect_act_near(const TestMlp& source, DType dtype, const TestRows& x,
                              const TestRows& act) {
    for (int64_t i = 0; i < x.view().rows; ++i) {
      for (int64_t j = 0; j < source.gate.source.rows; ++j) {
        const auto [g, dg] = product(x, i, source.gate.source, j, source.gate_bias.source, dtype);
        const auto [u, du] = product(x, i, source.up.source, j, source.up_bias.source, dtype);
        const double want = g / (1 + std::exp(-g)) * u;
        const double inner =
            1.1 * dg * (std::abs(u) + du) + std::abs(g) * du + 8 * kUnit * std::abs(want);
        const double rounding = dtype == DType::kBF16 ? kUnitBF16 * (std::abs(want) + inner) : 0.0;
        ASSERT_NEAR(act.at(i, j), want, inner + rounding) << i << " " << j;
      }
    }
  }

  void check(int64_t m, int64_t hidden, int64_t intermediate, DType dtype, DType x_dtype, Form form,
             bool biases) {
    std::mt19937 random(static_cast<uint32_t>(m + 10 * hidden + 1000 * intermediate));
    const TestMlp source(hidden, intermediate, dtype, form, biases, random);
    const Mlp mlp(source.source(), {}, dtype, kernels());
    EXPECT_EQ(mlp.hidden(), hidden);
    EXPECT_EQ(mlp.intermediate(), intermediate);
    TestRows x(m, hidden, x_dtype, 1), act(m, intermediate, dtype, 2), y(m, hidden, DType::kF32, 1);
    x.randomise(random);
    Team team(1);
    gate_up(mlp, x.view(), act.view(), team);
    expect_act_near(source, dtype, x, act);
    EXPECT_TRUE(act.gaps_untouched());
    down(mlp, act.view(), y.view(), team);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < hidden; ++j) {
        const auto [want, bound] =
            product(act, i, source.down.source, j, source.down_bias.source, dtype);
        ASSERT_NEAR(y.at(i, j), want, bound) << i << " " << j;
      }
    }
    EXPECT_TRUE(y.gaps_untouched());
  }
};

TRIMTAB_FOR_EACH_ISA(MlpTest);

TEST_P(MlpTest, EveryCountOfRows) {
  for (const int64_t m : {0, 1, 2, 3, 5, 6, 7, 12, 13, 64}) {
    for (const DType dtype : kTypes) check(m, 33, 45, dtype, dtype, Form::kDense, false);
  }
}

// M1: unquantised gated MLPs, with biases.
TEST_P(MlpTest, OddShapesBiasesAndMixedTypes) {
  for (const int64_t intermediate : {1, 3, 4, 5, 8, 9, 31, 32, 33, 64, 67}) {
    for (const DType dtype : kTypes) {
      for (const DType x_dtype : kTypes)
        check(5, 29, intermediate, dtype, x_dtype, Form::kDense, true);
    }
  }
}

TEST_P(MlpTest, TransposedInterleavedWeightsOfGptOss) {
  for (const DType dtype : kTypes) check(6, 34, 51, dtype, dtype, Form::kInterleaved, true);
}

TEST_P(MlpTest, EveryActivationReachesTheKernel) {
  std::mt19937 random(11);
  const TestMlp source(5, 40, DType::kF32, Form::kDense, false, random);
  TestRows x(2, 5, DType::kF32);
  x.randomise(random);
  std::vector<std::string> results;
  for (const Activation activation :
       {Activation{.kind = ActivationKind::kSilu}, Activation{.kind = ActivationKind::kGelu},
        Activation{.kind = ActivationKind::kGeluTanh},
        Activation{.kind = ActivationKind::kSwigluClamp},
        Activation{.kind = ActivationKind::kSwigluClamp, .alpha = 1.0F},
        Activation{.kind = ActivationKind::kSwigluClamp, .limit = 0.5F},
        Activation{.kind = ActivationKind::kSwigluClamp, .beta = 0.5F},
        Activation{.kind = ActivationKind::kSwigluStep, .limit = 0.25F},
        Activation{.kind = ActivationKind::kSwigluStep, .limit = 0.5F}}) {
    const Mlp mlp(source.source(), activation, DType::kF32, kernels());
    TestRows act(2, 40, DType::kF32);
    Team team(1);
    gate_up(mlp, x.view(), act.view(), team);
    for (const std::string& other : results) EXPECT_NE(act.row_bits(0), other);
    results.push_back(act.row_bits(0));
  }
}

TEST_P(MlpTest, BitsDoNotDependOnBatchOrTeam) {
  const int64_t m = 40, hidden = 70, intermediate = 90;
  for (const DType dtype : kTypes) {
    std::mt19937 random(13);
    const TestMlp source(hidden, intermediate, dtype, Form::kDense, true, random);
    const Mlp mlp(source.source(), {.kind = ActivationKind::kGeluTanh}, dtype, kernels());
    TestRows x(m, hidden, dtype), all(m, hidden, DType::kF32);
    x.randomise(random);
    const auto run = [&](ConstRows rows, Rows y, int threads) {
      Team team(threads);
      TestRows act(rows.rows, intermediate, dtype);
      gate_up(mlp, rows, act.view(), team);
      down(mlp, act.view(), y, team);
    };
    run(x.view(), all.view(), 1);
    for (const int threads : {2, 3}) {
      TestRows y(m, hidden, DType::kF32);
      run(x.view(), y.view(), threads);
      for (int64_t i = 0; i < m; ++i)
        ASSERT_EQ(y.row_bits(i), all.row_bits(i)) << threads << " threads, row " << i;
    }
    for (int64_t i = 0; i < m; ++i) {
      TestRows y(1, hidden, DType::kF32);
      run(x.view().slice(i, 1), y.view(), 1);
      ASSERT_EQ(y.row_bits(0), all.row_bits(i)) << "row " << i;
    }
  }
}

TEST(MlpArgumentsTest, RefusesWhatDoesNotFit) {
  std::mt19937 random(1);
  const TestMlp good(6, 4, DType::kF32, Form::kDense, true, random);
  const auto refused = [&](auto spoil) {
    MlpSource source = good.source();
    spoil(source);
    EXPECT_THROW(Mlp(source, {}, DType::kF32), InvalidArgument);
  };
  refused([](MlpSource& s) { s.up.rows = 3; });
  refused([](MlpSource& s) { s.up.cols = 5; });
  refused([](MlpSource& s) { s.down.rows = 5; });
  refused([](MlpSource& s) { s.down.cols = 3; });
  refused([](MlpSource& s) { s.down.dtype = DType::kI8; });
  refused([](MlpSource& s) { s.gate.data = nullptr; });
  refused([](MlpSource& s) { s.gate_bias.size = 5; });
  refused([](MlpSource& s) { s.up_bias = {}; });
  refused([](MlpSource& s) { s.down_bias.size = 4; });
  EXPECT_THROW(Mlp(good.source(), {}, DType::kI32), InvalidArgument);

  const Mlp mlp(good.source(), {}, DType::kBF16);
  Team team(1);
  const TestRows x(2, 6, DType::kBF16), act(2, 4, DType::kBF16), act32(2, 4, DType::kF32),
      y(2, 6, DType::kF32);
  EXPECT_NO_THROW(gate_up(mlp, x.view(), act.view(), team));
  EXPECT_NO_THROW(down(mlp, act.view(), y.view(), team));
  EXPECT_THROW(gate_up(mlp, act.view(), act.view(), team), InvalidArgument);
  EXPECT_THROW(gate_up(mlp, x.view(), act32.view(), team), InvalidArgument);
  EXPECT_THROW(gate_up(mlp, x.view(), act.view().slice(0, 1), team), InvalidArgument);
  EXPECT_THROW(down(mlp, act32.view(), y.view(), team), InvalidArgument);
}

// Weights that can't be stored are named by matrix and element.
TEST(MlpErrors, WeightsThatCanNotBeStoredAreNamed) {
  std::mt19937 random(3);
  for (const Scheme scheme : {Scheme::kW8A8, Scheme::kW4A8, Scheme::kMXFP8, Scheme::kMXFP4,
                              Scheme::kW4A16, Scheme::kW8A16}) {
    for (const char* name : {"gate", "up", "down"}) {
      TestMlp mlp(64, 48, DType::kF32, Form::kDense, false, random);
      TestMatrix& matrix = name[0] == 'g' ? mlp.gate : name[0] == 'u' ? mlp.up : mlp.down;
      const int64_t element = 2 * matrix.source.row_stride + 5 * matrix.source.col_stride;
      auto* const values = const_cast<float*>(reinterpret_cast<const float*>(matrix.source.data));
      values[element] = std::nanf("");
      try {
        const Mlp packed(mlp.source(), {}, scheme);
        ADD_FAILURE() << name;
      } catch (const InvalidArgument& error) {
        EXPECT_EQ(std::string(error.what()),
                  std::string("the ") + name + " weight: weight 5 of row 2 is nan");
      }
    }
  }
}

TEST(MlpErrors, MemoryThatOverlapsIsRefused) {
  std::mt19937 random(4);
  const TestMlp source(64, 64, DType::kF32, Form::kDense, false, random);
  const Mlp mlp(source.source(), {}, Scheme::kF32);
  Team team(1);
  std::vector<float> memory(64 * 8, 1.0F);
  const Buffer scratch(mlp.scratch_bytes(2));
  const std::span<std::byte> all(scratch.data(), scratch.bytes());
  const Rows rows(memory.data(), 2, 64), shifted(memory.data() + 64, 2, 64),
      apart(memory.data() + 256, 2, 64);
  EXPECT_NO_THROW(mlp.gate_up(rows, apart, all, team));
  EXPECT_THROW(mlp.gate_up(rows, rows, all, team), InvalidArgument);
  EXPECT_THROW(mlp.gate_up(rows, shifted, all, team), InvalidArgument);
  EXPECT_THROW(mlp.down(rows, shifted, all, team), InvalidArgument);
  EXPECT_THROW(mlp.down(Rows(scratch.as<float>(), 2, 64), rows, all, team), InvalidArgument);
  // Columns of one wide matrix do not overlap.
  const Rows left(reinterpret_cast<std::byte*>(memory.data()), 2, 64, 128, DType::kF32),
      right(reinterpret_cast<std::byte*>(memory.data() + 64), 2, 64, 128, DType::kF32);
  EXPECT_NO_THROW(mlp.gate_up(left, right, all, team));
}

}  // namespace
}  // namespace trimtab::test
