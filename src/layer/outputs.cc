// SPDX-License-Identifier: Apache-2.0
#include "layer/outputs.h"

#include <algorithm>

#include "base/row_tasks.h"

namespace trimtab {
namespace {

// Columns that are in registers and the nearest cache while all is done to them.
constexpr int64_t kBlock = 1024;

template <class T>
void add_weighted(const T* from, float weight, std::span<float> sum) {
  for (size_t h = 0; h < sum.size(); ++h) sum[h] += weight * to_float(from[h]);
}

// Zero experts return their input: the owner of the token adds it, once.
void add_identity(const Outputs& made, int64_t token, int64_t col, std::span<float> sum) {
  const float weight = made.identity.empty() ? 0.0F : made.identity[token];
  if (weight == 0.0F) return;
  if (made.x.dtype == DType::kF32) {
    add_weighted(made.x.row_as<float>(token) + col, weight, sum);
  } else {
    add_weighted(made.x.row_as<bf16_t>(token) + col, weight, sum);
  }
}

// Columns of one token, from col on.
void add_to_routed(const Outputs& made, bool add_shared, int64_t token, int64_t col,
                   std::span<float> sum) {
  if (add_shared) {
    const WeightedRow row{made.shared.row_as<float>(token) + col};
    add_rows(std::span(&row, 1), sum.data(), std::ssize(sum), true);
  }
  add_identity(made, token, col, sum);
}

void write_row(const Outputs& made, const LayerOutput& out, int64_t token) {
  const bool add_shared = made.shared.cols > 0 && !out.apart;
  float* const routed = made.routed.row_as<float>(token);
  if (out.routed.dtype == DType::kF32) {  // made where it belongs
    return add_to_routed(made, add_shared, token, 0, {routed, cells(made.routed.cols)});
  }
  // The sum is rounded from a block of its own: as F32 nobody needs it in memory.
  float block[kBlock];
  for (int64_t col = 0; col < made.routed.cols; col += kBlock) {
    const std::span<float> sum(block, cells(std::min(kBlock, made.routed.cols - col)));
    std::copy_n(routed + col, sum.size(), block);
    add_to_routed(made, add_shared, token, col, sum);
    convert_row(std::as_bytes(sum).data(), DType::kF32, std::ssize(sum), DType::kBF16,
                reinterpret_cast<std::byte*>(out.routed.row_as<bf16_t>(token) + col));
  }
  if (!out.apart) return;
  convert_row(made.shared.row(token), DType::kF32, out.shared.cols, DType::kBF16,
              out.shared.row(token));
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
    for (int64_t t = first; t < last; ++t) write_row(made, out, t);
  });
}

}  // namespace trimtab
