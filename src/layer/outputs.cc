// SPDX-License-Identifier: Apache-2.0
#include "layer/outputs.h"

#include "base/rows.h"

namespace trimtab {
namespace {

template <class T>
void add_weighted(const T* from, float weight, float* sum, int64_t count) {
  for (int64_t h = 0; h < count; ++h) sum[h] += weight * to_float(from[h]);
}

// Zero experts return their input: the owner of the token adds it, once.
void add_identity(ConstRows x, int64_t token, float weight, float* sum) {
  if (weight == 0.0F) return;
  if (x.dtype == DType::kF32) {
    add_weighted(x.row_as<float>(token), weight, sum, x.cols);
  } else {
    add_weighted(x.row_as<bf16_t>(token), weight, sum, x.cols);
  }
}

void round_row(Rows from, Rows to, int64_t token) {
  if (from.data == to.data) return;  // F32 that was made where it belongs
  convert_row(from.row(token), from.dtype, to.cols, to.dtype, to.row(token));
}

}  // namespace

LayerInput LayerInput::slice(int64_t first, int64_t count) const {
  if (!routed) return x.slice(first, count);
  const int64_t picks = x.rows > 0 ? std::ssize(ids) / x.rows : 0;
  return {x.slice(first, count), ids.subspan(first * picks, count * picks),
          weights.subspan(first * picks, count * picks),
          identity.empty() ? identity : identity.subspan(first, count)};
}

LayerOutput LayerOutput::slice(int64_t first, int64_t count) const {
  if (!apart) return routed.slice(first, count);
  return {routed.slice(first, count), shared.slice(first, count)};
}

void write_outputs(const Outputs& made, const LayerOutput& out, Team& team) {
  const bool add_shared = made.shared.cols > 0 && !out.apart;
  if (!add_shared && made.identity.empty() && out.routed.dtype == DType::kF32) return;
  share_rows(team, made.routed.rows, made.routed.row_bytes(), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      float* const sum = made.routed.row_as<float>(t);
      if (add_shared) {
        const WeightedRow row{made.shared.row_as<float>(t)};
        add_rows(std::span(&row, 1), sum, made.routed.cols, true);
      }
      if (!made.identity.empty()) add_identity(made.x, t, made.identity[t], sum);
      round_row(made.routed, out.routed, t);
      if (out.apart) round_row(made.shared, out.shared, t);
    }
  });
}

}  // namespace trimtab
