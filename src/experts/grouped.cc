// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <new>
#include <optional>
#include <utility>

#include "base/cat.h"
#include "base/quantize_rows.h"
#include "base/row_tasks.h"
#include "experts/product_pipeline.h"
#include "trimtab/error.h"
#include "trimtab/experts.h"

namespace trimtab {
namespace {

// Rows that are computed together: scratch is kept for no more. Enough that the ends of a pipeline,
// where threads run out of work, take less than 1 % of it, and that an expert with more rows reads
// its weights a second time only where arithmetic takes longer than reading.
constexpr int64_t kChunkRows = kRowsAtOnce;

// Does `out` only overwrite rows before a chunk, wherever that begins? How far a row of out is from
// the first row that its chunk may have grows or shrinks evenly, so both ends tell.
bool stays_before_chunk(ConstRows out, ConstRows x) {
  const int64_t chunk = std::min(x.rows, kChunkRows);
  const auto fits = [&](int64_t row) {
    return out.row(row) + out.row_bytes() <= x.row(row + 1 - chunk);
  };
  return fits(chunk - 1) && fits(x.rows - 1);
}

// The rows from `first` on; where rows are pointers x has no memory.
ConstRows some_rows(ConstRows x, int64_t first, int64_t count) {
  if (x.data != nullptr) return x.slice(first, count);
  x.rows = count;
  return x;
}
RowSource some_rows(const Tokens& tokens, int64_t first, int64_t count) {
  const auto part = [&](std::span<const std::byte* const> at) {
    return at.empty() ? at : at.subspan(first, count);
  };
  return {some_rows(tokens.x, first, count),
          tokens.scales.cols > 0 ? some_rows(tokens.scales, first, count) : tokens.scales,
          {part(tokens.at.x), part(tokens.at.scales)}};
}

class GroupedExperts final : public Experts {
 public:
  GroupedExperts(std::vector<std::shared_ptr<const Mlp>> slots, int64_t hidden,
                 WeightFormat weights, Format format, Left left)
      : slots_(std::move(slots)), hidden_(hidden), weights_(weights), format_(format), left_(left) {
    if (left == Left::kNothing && format != Format::kStandard)
      throw InvalidArgument("experts: a row a token needs rows in the standard format");
    if (hidden < 1) throw InvalidArgument(cat("experts: hidden must be at least 1, is ", hidden));
    for (size_t s = 0; s < slots_.size(); ++s) check_slot(s);
  }

  Format format() const override { return format_; }
  Left left() const override { return left_; }
  int64_t hidden() const override { return hidden_; }
  int num_local() const override { return static_cast<int>(slots_.size()); }
  DType dtype() const override { return weights_.rows(); }
  bool overwrites_rows() const override { return left_ != Left::kNothing; }
  bool accepts(DType dtype) const override {
    if (dtype == weights_.rows()) return true;
    // Rows that arrive quantised have scales of their own.
    if (has_row_scales()) return false;
    // Scales of whole blocks only, as quantize_rows() makes them.
    return dtype == weights_.quantized_rows() &&
           (dtype != DType::kF8E4M3 || hidden_ % kMxBlock == 0);
  }
  size_t scratch_bytes(int64_t rows) const override {
    if (slots_.empty()) return 0;
    Carver carver(nullptr);
    if (left_ == Left::kNothing) carver.take_rows(rows, hidden_, DType::kF32);
    rows = std::min(rows, kChunkRows);
    const int64_t parts = std::min(rows, std::ssize(slots_));
    carver.take<ExpertRows>(std::ssize(slots_));
    carver.take_rows(rows, intermediate(), dtype());
    carver.take_bytes(
        PipelinedProduct::bytes(slots_.front()->gate_up_packed(), parts, rows, dtype()));
    carver.take_bytes(PipelinedProduct::bytes(slots_.front()->down_packed(), parts, rows, dtype()));
    return carver.used();
  }

  void run(const Tokens& tokens, Rows out, std::span<std::byte> scratch,
           Team& team) const override {
    check_run(tokens, out, scratch);
    if (tokens.x.rows == 0) {
      if (left_ == Left::kNothing) sum_picks(tokens.picks, {}, out, team);
      return;
    }
    Carver carver(scratch.data());
    const Rows y =
        left_ == Left::kNothing ? carver.take_rows(tokens.x.rows, hidden_, DType::kF32) : out;
    std::optional<Board::Reading> reading;
    if (tokens.board != nullptr) reading.emplace(*tokens.board);
    run_chunks(tokens, y, carver, team);
    if (left_ == Left::kNothing) sum_picks(tokens.picks, y, out, team);
  }

 private:
  bool has_row_scales() const {
    return !slots_.empty() && slots_.front()->gate_up_packed().row_scale.bytes() > 0;
  }
  int64_t intermediate() const { return slots_.empty() ? 0 : slots_.front()->intermediate(); }

  // y: weighted.
  static void sum_picks(const TokenPicks& picks, ConstRows y, Rows out, Team& team) {
    sum_rows(team, out, picks.top_k, [&](int64_t pick) -> WeightedRow {
      const int32_t row = picks.rows[pick];
      return {row < 0 ? nullptr : y.row_as<float>(row)};
    });
  }

  void check_slot(size_t s) const {
    if (slots_[s] == nullptr) throw InvalidArgument(cat("experts: slot ", s, " is empty"));
    const Mlp& mlp = *slots_[s];
    if (mlp.hidden() != hidden_ || mlp.intermediate() != intermediate() ||
        mlp.weight_format() != weights_) {
      throw InvalidArgument(cat("experts: slot ", s, " is ", mlp.hidden(), " -> ",
                                mlp.intermediate(), " in ", name(mlp.weight_format()), ", not ",
                                hidden_, " -> ", intermediate(), " in ", name(weights_)));
    }
    if (mlp.gate_up_packed().kernels != slots_.front()->gate_up_packed().kernels) {
      throw InvalidArgument(
          cat("experts: slot ", s, " is packed for another instruction set than slot 0"));
    }
    const auto alike = [](const PackedWeights& a, const PackedWeights& b) {
      return (a.row_scale.bytes() > 0) == (b.row_scale.bytes() > 0) &&
             (a.order.bytes() > 0) == (b.order.bytes() > 0);
    };
    const Mlp& first = *slots_.front();
    if (!alike(mlp.gate_up_packed(), first.gate_up_packed()) ||
        !alike(mlp.down_packed(), first.down_packed())) {
      throw InvalidArgument(cat("experts: slot ", s, " or slot 0 has static scales of rows, or an ",
                                "order of inputs, the other has not"));
    }
  }

  void check_run(const Tokens& tokens, const Rows& out, std::span<std::byte> scratch) const {
    const ConstRows& x = tokens.x;
    if (tokens.format != format_) {
      static constexpr const char* kNames[] = {"standard", "batched", "indirect"};
      throw InvalidArgument(
          cat("experts: tokens must be in the ", kNames[static_cast<size_t>(format_)], " format"));
    }
    if (std::ssize(tokens.counts) != num_local()) {
      throw InvalidArgument(
          cat("experts: counts of ", tokens.counts.size(), " experts for ", num_local(), " slots"));
    }
    int64_t sum = 0;
    for (const int32_t count : tokens.counts) {
      if (count < 0) throw InvalidArgument(cat("experts: a count of ", count));
      if (batched() && count > tokens.capacity) {
        throw InvalidArgument(
            cat("experts: a count of ", count, " with a capacity of ", tokens.capacity));
      }
      sum += count;
    }
    const int64_t rows = batched() ? num_local() * tokens.capacity : sum;
    if (rows != x.rows)
      throw InvalidArgument(cat("experts: ", x.rows, " rows where counts or capacity say ", rows));
    if (left_ == Left::kNothing && tokens.picks.top_k == 0) {
      throw InvalidArgument(
          "experts: they return a row a token, so the dispatcher must bring tokens with their "
          "picks");
    }
    if (x.rows == 0 && left_ != Left::kNothing) return;
    check_out(out, left_ == Left::kNothing ? tokens.picks.tokens() : x.rows);
    if (x.rows == 0) return;
    if (slots_.front()->down_packed().panels.data() == nullptr)
      throw InvalidArgument("experts: they are outlines, which have no weights");
    // Rows of kIndirect are the peers'; scratch and out are this rank's alone.
    const bool on_x =
        x.data != nullptr && overlap(x, out) && !(overwrites_rows() && stays_before_chunk(out, x));
    if (on_x || (x.data != nullptr && overlap(x, scratch)) || overlap(out, scratch)) {
      throw InvalidArgument(
          "experts: x, out and scratch must not overlap, unless out is Tokens::y");
    }
    if (x.cols != hidden_ || !accepts(x.dtype) || x.stride < x.cols) {
      throw InvalidArgument(cat("experts: x must be ", name(dtype()), " [m, ", hidden_, "], is ",
                                name(x.dtype), " [", x.rows, ", ", x.cols, "] with stride ",
                                x.stride));
    }
    const ScaleShape wanted = scale_shape(x.dtype, hidden_);
    if (wanted.cols != 0 && (tokens.scales.rows != x.rows || tokens.scales.cols != wanted.cols ||
                             tokens.scales.dtype != wanted.dtype)) {
      throw InvalidArgument(cat("experts: scales must be ", name(wanted.dtype), " [", x.rows, ", ",
                                wanted.cols, "], are ", name(tokens.scales.dtype), " [",
                                tokens.scales.rows, ", ", tokens.scales.cols, "]"));
    }
    const int64_t pointers = format_ == Format::kIndirect ? x.rows : 0;
    const int64_t scale_pointers = wanted.cols != 0 ? pointers : 0;
    if (std::ssize(tokens.at.x) != pointers || std::ssize(tokens.at.scales) != scale_pointers) {
      throw InvalidArgument(cat("experts: ", tokens.at.x.size(), " pointers to rows and ",
                                tokens.at.scales.size(), " to scales, expected ", pointers, " and ",
                                scale_pointers));
    }
    if (left_ != Left::kWeightAndSum && std::ssize(tokens.weights) != x.rows) {
      throw InvalidArgument(cat("experts: ", tokens.weights.size(), " weights for ", x.rows,
                                " rows; the dispatcher must carry them"));
    }
    if (scratch.size() < scratch_bytes(x.rows) ||
        reinterpret_cast<uintptr_t>(scratch.data()) % 64 != 0) {
      throw InvalidArgument(cat("experts: ", scratch_bytes(x.rows),
                                " bytes of scratch, 64-byte aligned, are needed, got ",
                                scratch.size(), " at ", static_cast<const void*>(scratch.data())));
    }
  }

  void check_out(const Rows& out, int64_t rows) const {
    if (out.rows != rows || out.cols != hidden_ || out.dtype != DType::kF32 ||
        out.stride < out.cols) {
      throw InvalidArgument(cat("experts: out must be F32 [", rows, ", ", hidden_, "], is ",
                                name(out.dtype), " [", out.rows, ", ", out.cols, "] with stride ",
                                out.stride));
    }
  }

  void run_chunks(const Tokens& tokens, Rows y, Carver carver, Team& team) const {
    ExpertRows* const parts = carver.take<ExpertRows>(std::ssize(slots_)).data();
    size_t num_parts = 0;
    int64_t begin = 0, end = 0;  // of the rows of the parts
    const auto run_parts = [&] {
      if (num_parts > 0) run_chunk({parts, num_parts}, tokens, begin, y, end, carver, team);
      num_parts = 0;
    };
    int64_t place = 0;
    for (size_t s = 0; s < slots_.size(); ++s) {
      const int64_t last = place + tokens.counts[s];
      for (int64_t row = place; row < last; row = end) {
        if (last - begin > kChunkRows) run_parts();
        if (num_parts == 0) begin = row;
        end = std::min(last, begin + kChunkRows);
        new (parts + num_parts++) ExpertRows{row - begin, end - row, slots_[s].get()};
      }
      place += batched() ? tokens.capacity : tokens.counts[s];
    }
    run_parts();
  }

  // The rows [begin, end), of which the parts count from begin on: most rows first, ties by slot.
  void run_chunk(std::span<ExpertRows> parts, const Tokens& tokens, int64_t begin, Rows y,
                 int64_t end, Carver carver, Team& team) const {
    std::ranges::sort(parts, {}, [](const ExpertRows& p) { return std::pair(-p.count, p.first); });
    const int64_t rows = end - begin;
    const Rows act = carver.take_rows(rows, intermediate(), dtype());
    const std::span<const float> row_weights = left_ == Left::kWeightAndSum
                                                   ? std::span<const float>{}
                                                   : tokens.weights.subspan(begin, rows);
    const PipelinedProduct products[] = {
        PipelinedProduct(MlpHalf::kGateUp, parts, some_rows(tokens, begin, rows), act, team.size(),
                         carver),
        PipelinedProduct(MlpHalf::kDown, parts, {act}, y.slice(begin, rows), team.size(), carver,
                         row_weights)};
    run_pipeline(products, rows * hidden_ * intermediate(), team);
  }

  bool batched() const { return format_ == Format::kBatched; }

  std::vector<std::shared_ptr<const Mlp>> slots_;
  int64_t hidden_;
  WeightFormat weights_;
  Format format_;
  Left left_;
};

}  // namespace

std::unique_ptr<Experts> make_grouped_experts(std::vector<std::shared_ptr<const Mlp>> slots,
                                              int64_t hidden, WeightFormat weights, Format format,
                                              Left left) {
  return std::make_unique<GroupedExperts>(std::move(slots), hidden, weights, format, left);
}

}  // namespace trimtab
