// SPDX-License-Identifier: Apache-2.0
#include "bench/experts/gemm_bench.h"

#include <memory>
#include <utility>

#include "base/cat.h"
#include "bench/experts/expert_set.h"
#include "bench/experts/verify.h"
#include "trimtab/table.h"

namespace trimtab::bench {
namespace {

// One product over a set of operands.
struct Gemm {
  std::string_view name;
  int64_t out, in;  // of the weights: gate and up are one matrix of twice the height
  int64_t y_cols;
  DType y_dtype;
  int64_t operands;
  std::function<void(int64_t operand, ConstRows x, Rows y)> run;
  std::function<void(int64_t operand, ConstRows x, ConstRows y, const std::string& what)> verify;
};

std::vector<Gemm> gemms_of(const ModelShape& model, const WeightDType& dtype,
                           const BenchContext& context) {
  const int64_t hidden = model.hidden, intermediate = model.intermediate;
  const double bytes = 3 * static_cast<double>(hidden * intermediate) * dtype.bits / 8;
  const int64_t count = cold_count(bytes, context.cold_bytes);
  const auto set =
      std::make_shared<const ExpertSet>(dtype, hidden, intermediate, count, context.team);
  Team& team = context.team;
  const auto scratch = std::make_shared<Buffer>();
  const auto enough = [scratch](const Mlp& mlp, int64_t rows) {
    if (scratch->bytes() < mlp.scratch_bytes(rows))
      *scratch = Buffer(mlp.scratch_bytes(rows));  // untimed
    return std::span(scratch->data(), scratch->bytes());
  };
  const auto gate_up = [set, enough, &team](int64_t i, ConstRows x, Rows act) {
    set->mlp(i)->gate_up(x, act, enough(*set->mlp(i), x.rows), team);
  };
  const auto down = [set, enough, &team](int64_t i, ConstRows act, Rows y) {
    set->mlp(i)->down(act, y, enough(*set->mlp(i), act.rows), team);
  };
  return {{"gate_up", 2 * intermediate, hidden, intermediate, dtype.rows, count, gate_up,
           [set, &dtype](int64_t i, ConstRows x, ConstRows act, const std::string& what) {
             verify_gated(dtype, set->source(i), x, act, what);
           }},
          {"down", hidden, intermediate, hidden, DType::kF32, count, down,
           [set, &dtype](int64_t i, ConstRows act, ConstRows y, const std::string& what) {
             verify_linear(dtype, set->source(i).down, act, y, what);
           }}};
}

std::vector<Gemm> gemms_of(const MatrixShape& shape, const WeightDType& dtype,
                           const BenchContext& context) {
  const double bytes = static_cast<double>(shape.out * shape.in) * dtype.bits / 8;
  const int64_t count = cold_count(bytes, context.cold_bytes);
  const auto set =
      std::make_shared<const LinearSet>(dtype, shape.out, shape.in, count, context.team);
  Team& team = context.team;
  return {{"linear", shape.out, shape.in, shape.out, DType::kF32, count,
           [set, &team](int64_t i, ConstRows x, Rows y) { set->linear(i).run(x, y, team); },
           [set, &dtype](int64_t i, ConstRows x, ConstRows y, const std::string& what) {
             verify_linear(dtype, set->source(i), x, y, what);
           }}};
}

Rows make_rows(Buffer& memory, int64_t rows, int64_t cols, DType dtype) {
  memory = Buffer(shape_bytes(dtype, rows, cols));
  return {memory.data(), rows, cols, cols, dtype};
}

Timing bench_gemm(const Gemm& gemm, const WeightDType& dtype, int64_t m,
                  const BenchContext& context, const std::string& what) {
  Buffer x_memory, y_memory;
  const Rows x = make_rows(x_memory, m, gemm.in, dtype.rows),
             y = make_rows(y_memory, m, gemm.y_cols, gemm.y_dtype);
  fill_random(x, 1.0, 3, context.team);
  gemm.run(0, x, y);
  gemm.verify(0, x, y, what);
  const double weights = static_cast<double>(gemm.out * gemm.in);
  const Part part{2 * weights * static_cast<double>(m), weights * dtype.bits / 8};
  const Subject subject{.run = [&](int64_t call) { gemm.run((call + 1) % gemm.operands, x, y); },
                        .work = [&](int64_t) { return std::span(&part, 1); }};
  return measure(subject, dtype.dot, context.effort, context.ceilings);
}

}  // namespace

std::vector<GemmRow> bench_gemms(const std::string& shape, const WeightDType& dtype,
                                 const std::vector<int64_t>& m, const BenchContext& context) {
  context.progress(cat(shape, " ", dtype.name, ": packing weights"));
  const std::vector<Gemm> gemms = std::visit(
      [&](const auto& sizes) { return gemms_of(sizes, dtype, context); }, parse_shape(shape));
  std::vector<GemmRow> rows;
  for (const Gemm& gemm : gemms) {
    for (const int64_t count : m) {
      const std::string what = cat(shape, " ", gemm.name, " ", dtype.name, ", m = ", count);
      context.progress(what);
      rows.push_back(
          {shape, gemm.name, dtype.name, count, bench_gemm(gemm, dtype, count, context, what)});
    }
  }
  return rows;
}

}  // namespace trimtab::bench
