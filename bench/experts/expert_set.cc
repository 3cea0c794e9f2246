// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/expert_set.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace trimtab::bench {
namespace {

constexpr int64_t kStep = 64;  // elements from the weights of one operand to those of the next

void fill_row(Rows rows, int64_t i, double scale, uint64_t seed) {
  const auto unit = static_cast<float>(scale * 0x1p-31);
  const uint64_t key = split_mix64(seed) ^ (i << 32);
  for (int64_t j = 0; j < rows.cols; ++j) {
    const auto random = static_cast<int32_t>(split_mix64(key + j) >> 32);
    const float value = static_cast<float>(random) * unit;
    if (rows.dtype == DType::kF32) {
      rows.row_as<float>(i)[j] = value;
    } else {
      rows.row_as<bf16_t>(i)[j] = to_bf16(value);
    }
  }
}

}  // namespace

void fill_random(Rows rows, double scale, uint64_t seed, Team& team) {
  team.for_each(rows.rows, [&](int64_t i) { fill_row(rows, i, scale, seed); });
}

WeightPool::WeightPool(const WeightDType& dtype, int64_t elements, int64_t k, int64_t count,
                       Team& team)
    : dtype_(dtype.source), pool_(shape_bytes(dtype.source, elements + kStep * count)) {
  constexpr int64_t kRow = 1 << 14;
  const int64_t size = elements + kStep * count, whole = size / kRow;
  // Uniform numbers of this scale have variance 1 / k.
  const double scale = std::sqrt(3.0 / static_cast<double>(k));
  fill_random({pool_.data(), whole, kRow, kRow, dtype_}, scale, 1, team);
  fill_random(Rows{pool_.data(), whole + 1, size - whole * kRow, kRow, dtype_}.slice(whole, 1),
              scale, 2, team);
}

MatrixSource WeightPool::matrix(int64_t i, int64_t first, int64_t rows, int64_t cols) const {
  const size_t offset = shape_bytes(dtype_, kStep * i + first);
  return {pool_.data() + offset, dtype_, rows, cols, cols, 1, {}};
}

int64_t cold_count(double operand_bytes, size_t cold) {
  return std::max<int64_t>(2, std::llround(static_cast<double>(cold) / operand_bytes));
}

ExpertSet::ExpertSet(const WeightDType& dtype, int64_t hidden, int64_t intermediate, int64_t count,
                     Team& team)
    : hidden_(hidden),
      intermediate_(intermediate),
      pool_(dtype, 3 * hidden * intermediate, hidden, count, team),
      mlps_(count) {
  std::vector<BufferArena> arenas(team.size());
  team.for_each(count, [&](int64_t i, int member) {
    mlps_[i] =
        std::make_shared<Mlp>(source(i), Activation{}, dtype.weights, nullptr, &arenas[member]);
  });
}

MlpSource ExpertSet::source(int64_t i) const {
  const int64_t size = hidden_ * intermediate_;
  return {pool_.matrix(i, 0, intermediate_, hidden_),
          pool_.matrix(i, size, intermediate_, hidden_),
          pool_.matrix(i, 2 * size, hidden_, intermediate_),
          {},
          {},
          {}};
}

LinearSet::LinearSet(const WeightDType& dtype, int64_t out, int64_t in, int64_t count, Team& team)
    : out_(out), in_(in), pool_(dtype, out * in, in, count, team), linears_(count) {
  team.for_each(count,
                [&](int64_t i) { linears_[i] = Linear(source(i), VectorSource{}, dtype.weights); });
}

}  // namespace trimtab::bench
