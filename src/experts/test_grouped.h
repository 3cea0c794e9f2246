// SPDX-License-Identifier: Apache-2.0
// Tables of random experts and rows for them, for the tests of this room.
#pragma once

#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "experts/test_formats.h"
#include "experts/test_mlp.h"
#include "trimtab/experts.h"

namespace trimtab::test {

constexpr int64_t kHidden = 70, kIntermediate = 37;
using Table = std::vector<std::shared_ptr<const Mlp>>;

inline std::shared_ptr<const Mlp> make_mlp(WeightFormat format, uint32_t seed,
                                           const GemmKernels* kernels, int64_t hidden = kHidden,
                                           int64_t intermediate = kIntermediate) {
  std::mt19937 random(seed);
  const TestMlp source(hidden, intermediate, DType::kBF16, Form::kDense, true, random);
  return std::make_shared<const Mlp>(
      source.source(), Activation{.kind = ActivationKind::kSwigluClamp}, format, kernels);
}

inline Table make_table(int slots, WeightFormat format, const GemmKernels* kernels,
                        int64_t hidden = kHidden) {
  Table table;
  for (int s = 0; s < slots; ++s)
    table.push_back(make_mlp(format, static_cast<uint32_t>(100 + s), kernels, hidden));
  return table;
}

inline int64_t total(std::span<const int32_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

inline TestRows random_rows(int64_t rows, DType dtype, int64_t hidden = kHidden) {
  std::mt19937 random(5);
  TestRows x(rows, hidden, dtype, 2);
  x.randomise(random);
  return x;
}

// Runs with exactly the scratch that is asked for.
inline TestRows run(const Experts& experts, const Tokens& tokens, int threads) {
  Team team(threads);
  TestRows out(tokens.x.rows, experts.hidden(), DType::kF32, 1);
  const Buffer scratch(experts.scratch_bytes(tokens.x.rows));
  experts.run(tokens, out.view(), {scratch.data(), scratch.bytes()}, team);
  return out;
}
inline TestRows run(const Experts& experts, const TestRows& x, std::span<const int32_t> counts,
                    int threads) {
  return run(experts, {.x = x.view(), .weights = {}, .counts = counts}, threads);
}

// Bitwise: each expert's rows through its Mlp alone. Expert s has counts[s] rows from row first(s)
// on.
template <class First>
void expect_same_as_mlps(const Table& table, const ConstRows& x, std::span<const int32_t> counts,
                         const TestRows& out, const First& first) {
  Team team(1);
  for (size_t s = 0; s < table.size(); ++s) {
    const int64_t rows = counts[s];
    TestRows act(rows, table[s]->intermediate(), table[s]->dtype()),
        y(rows, table[s]->hidden(), DType::kF32);
    gate_up(*table[s], x.slice(first(s), rows), act.view(), team);
    down(*table[s], act.view(), y.view(), team);
    for (int64_t i = 0; i < rows; ++i) {
      ASSERT_EQ(out.row_bits(first(s) + i), y.row_bits(i)) << "slot " << s << " row " << i;
    }
  }
  EXPECT_TRUE(out.gaps_untouched());
}
inline void expect_same_as_mlps(const Table& table, const TestRows& x,
                                std::span<const int32_t> counts, const TestRows& out) {
  expect_same_as_mlps(table, x.view(), counts, out,
                      [&](size_t s) { return total(counts.first(s)); });
}

}  // namespace trimtab::test
