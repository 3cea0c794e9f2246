// SPDX-License-Identifier: Apache-2.0
// Random weights, packed many times over, so that a run through all of them finds none in a cache.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/experts/weight_dtype.h"
#include "trimtab/experts.h"
#include "trimtab/team.h"
#include "trimtab/tensor.h"

namespace trimtab::bench {

// Rows of random numbers in [-scale, scale), a function of the seed.
void fill_random(Rows rows, double scale, uint64_t seed, Team& team);

// The weights of random matrices. All lie in one pool, each at an offset of its own: other weights,
// little memory.
class WeightPool {
 public:
  // `count` operands of `elements` weights each, for sums of `k` terms that come out near 1.
  WeightPool(const WeightDType& dtype, int64_t elements, int64_t k, int64_t count, Team& team);
  // rows x cols of operand i, from its element `first` on.
  MatrixSource matrix(int64_t i, int64_t first, int64_t rows, int64_t cols) const;

 private:
  DType dtype_;
  Buffer pool_;
};

// How many operands of this size make up the bytes of a cold run: at least two, so that they take
// turns.
int64_t cold_count(double operand_bytes, size_t cold);

class ExpertSet {
 public:
  ExpertSet(const WeightDType& dtype, int64_t hidden, int64_t intermediate, int64_t count,
            Team& team);
  int64_t size() const { return std::ssize(mlps_); }
  const std::shared_ptr<const Mlp>& mlp(int64_t i) const { return mlps_[i]; }
  MlpSource source(int64_t i) const;

 private:
  int64_t hidden_, intermediate_;
  WeightPool pool_;
  std::vector<std::shared_ptr<const Mlp>> mlps_;
};

class LinearSet {
 public:
  LinearSet(const WeightDType& dtype, int64_t out, int64_t in, int64_t count, Team& team);
  int64_t size() const { return std::ssize(linears_); }
  const Linear& linear(int64_t i) const { return linears_[i]; }
  MatrixSource source(int64_t i) const { return pool_.matrix(i, 0, out_, in_); }

 private:
  int64_t out_, in_;
  WeightPool pool_;
  std::vector<Linear> linears_;
};

}  // namespace trimtab::bench
