// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <new>
#include <utility>

#include "base/cat.h"
#include "experts/panels.h"
#include "experts/product.h"
#include "trimtab/error.h"
#include "trimtab/experts.h"

namespace trimtab {
namespace {

// The rows of one slot.
struct Part {
  int64_t first, count;
  int slot;
};

class GroupedExperts final : public Experts {
 public:
  GroupedExperts(std::vector<std::shared_ptr<const Mlp>> slots, int64_t hidden, DType dtype)
      : slots_(std::move(slots)), hidden_(hidden), dtype_(dtype) {
    if (hidden < 1) throw InvalidArgument(cat("experts: hidden must be at least 1, is ", hidden));
    if (dtype != DType::kF32 && dtype != DType::kBF16) {
      throw InvalidArgument(cat("experts: dtype must be F32 or BF16, not ", name(dtype)));
    }
    for (size_t s = 0; s < slots_.size(); ++s) check_slot(s);
  }

  Format format() const override { return Format::kStandard; }
  Left left() const override { return Left::kWeightAndSum; }
  int64_t hidden() const override { return hidden_; }
  int num_local() const override { return static_cast<int>(slots_.size()); }
  DType dtype() const override { return dtype_; }
  size_t scratch_bytes(int64_t rows) const override {
    return parts_bytes() + static_cast<size_t>(rows * intermediate()) * static_cast<size_t>(bits(dtype_) / 8);
  }

  void run(const Tokens& tokens, Rows out, std::span<std::byte> scratch, Team& team) const override {
    check_run(tokens, out, scratch);
    if (tokens.x.rows == 0) return;
    const std::span<const Part> parts = hottest_first(tokens.counts, scratch);
    const Rows act(scratch.data() + parts_bytes(), tokens.x.rows, intermediate(), intermediate(), dtype_);
    const Mlp& any = *slots_.front();
    const int64_t multiply_adds = tokens.x.rows * hidden_ * intermediate();
    // All experts' panels are one list, so the team waits twice in all, and the last to finish are the small ones.
    const int64_t gate_up_panels = num_panels(any.gate_up_packed());
    share(team, std::ssize(parts) * gate_up_panels, 2 * multiply_adds, [&](int64_t item) {
      const Part& part = parts[static_cast<size_t>(item / gate_up_panels)];
      const Mlp& mlp = *slots_[static_cast<size_t>(part.slot)];
      gated_panel(mlp.gate_up_packed(), item % gate_up_panels, mlp.activation(), tokens.x.slice(part.first, part.count),
                  act.slice(part.first, part.count));
    });
    const int64_t down_panels = num_panels(any.down_packed());
    share(team, std::ssize(parts) * down_panels, multiply_adds, [&](int64_t item) {
      const Part& part = parts[static_cast<size_t>(item / down_panels)];
      const Mlp& mlp = *slots_[static_cast<size_t>(part.slot)];
      linear_panel(mlp.down_packed(), item % down_panels, act.slice(part.first, part.count),
                   out.slice(part.first, part.count));
    });
  }

 private:
  int64_t intermediate() const { return slots_.empty() ? 0 : slots_.front()->intermediate(); }
  size_t parts_bytes() const { return Workspace::padded(slots_.size() * sizeof(Part)); }

  void check_slot(size_t s) const {
    if (slots_[s] == nullptr) throw InvalidArgument(cat("experts: slot ", s, " is empty"));
    const Mlp& mlp = *slots_[s];
    if (mlp.hidden() != hidden_ || mlp.intermediate() != intermediate() || mlp.dtype() != dtype_) {
      throw InvalidArgument(cat("experts: slot ", s, " is ", mlp.hidden(), " -> ", mlp.intermediate(), " in ",
                                name(mlp.dtype()), ", not ", hidden_, " -> ", intermediate(), " in ", name(dtype_)));
    }
    if (mlp.gate_up_packed().kernels != slots_.front()->gate_up_packed().kernels) {
      throw InvalidArgument(cat("experts: slot ", s, " is packed for another instruction set than slot 0"));
    }
  }

  void check_run(const Tokens& tokens, const Rows& out, std::span<std::byte> scratch) const {
    const ConstRows& x = tokens.x;
    if (tokens.format != Format::kStandard) throw InvalidArgument("experts: tokens must be in the standard format");
    if (std::ssize(tokens.counts) != num_local()) {
      throw InvalidArgument(cat("experts: counts of ", tokens.counts.size(), " experts for ", num_local(), " slots"));
    }
    int64_t sum = 0;
    for (const int32_t count : tokens.counts) {
      if (count < 0) throw InvalidArgument(cat("experts: a count of ", count));
      sum += count;
    }
    if (sum != x.rows) throw InvalidArgument(cat("experts: counts sum to ", sum, " for ", x.rows, " rows"));
    if (x.rows == 0) return;
    if (x.cols != hidden_ || x.dtype != dtype_ || x.stride < x.cols) {
      throw InvalidArgument(cat("experts: x must be ", name(dtype_), " [m, ", hidden_, "], is ", name(x.dtype), " [",
                                x.rows, ", ", x.cols, "] with stride ", x.stride));
    }
    if (out.rows != x.rows || out.cols != hidden_ || out.dtype != DType::kF32 || out.stride < out.cols) {
      throw InvalidArgument(cat("experts: out must be F32 [", x.rows, ", ", hidden_, "], is ", name(out.dtype), " [",
                                out.rows, ", ", out.cols, "] with stride ", out.stride));
    }
    if (scratch.size() < scratch_bytes(x.rows) || reinterpret_cast<uintptr_t>(scratch.data()) % 64 != 0) {
      throw InvalidArgument(cat("experts: ", scratch_bytes(x.rows),
                                " bytes of scratch, 64-byte aligned, are needed, got ", scratch.size(), " at ",
                                static_cast<const void*>(scratch.data())));
    }
  }

  // The slots that have rows, most rows first, ties by slot.
  std::span<const Part> hottest_first(std::span<const int32_t> counts, std::span<std::byte> scratch) const {
    Part* parts = reinterpret_cast<Part*>(scratch.data());
    size_t num_parts = 0;
    int64_t first = 0;
    for (size_t s = 0; s < counts.size(); ++s) {
      if (counts[s] > 0) new (parts + num_parts++) Part{first, counts[s], static_cast<int>(s)};
      first += counts[s];
    }
    std::sort(parts, parts + num_parts,
              [](const Part& a, const Part& b) { return std::pair(-a.count, a.slot) < std::pair(-b.count, b.slot); });
    return {parts, num_parts};
  }

  std::vector<std::shared_ptr<const Mlp>> slots_;
  int64_t hidden_;
  DType dtype_;
};

}  // namespace

std::unique_ptr<Experts> make_grouped_experts(std::vector<std::shared_ptr<const Mlp>> slots, int64_t hidden,
                                              DType dtype) {
  return std::make_unique<GroupedExperts>(std::move(slots), hidden, dtype);
}

}  // namespace trimtab
