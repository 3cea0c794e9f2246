// SPDX-License-Identifier: Apache-2.0
#include "expert_table.h"

#include <algorithm>

#include "base/cat.h"
#include "rank_threads.h"
#include "trimtab/error.h"
#include "trimtab/expert_part.h"

namespace trimtab::python {
namespace {

const std::byte* element(const std::byte* data, DType dtype, int64_t index) {
  return data + index * bits(dtype) / 8;  // strides may be negative
}

// `rows` rows of one expert's matrix, from `first` on, `step` apart.
MatrixSource matrix(const StackedMatrices& all, int64_t expert, bool transposed, int64_t first,
                    int64_t step, int64_t rows) {
  const int row = transposed ? 2 : 1, col = transposed ? 1 : 2;
  const int64_t begin = expert * all.strides[0] + first * all.strides[row];
  return {element(all.data, all.dtype, begin),
          all.dtype,
          rows,
          all.shape[col],
          step * all.strides[row],
          all.strides[col],
          {}};
}

VectorSource vector(const StackedVectors& all, int64_t expert, int64_t first, int64_t step,
                    int64_t size) {
  if (all.data == nullptr) return {};
  const int64_t begin = expert * all.strides[0] + first * all.strides[1];
  return {element(all.data, all.dtype, begin), all.dtype, size, step * all.strides[1]};
}

MlpSource source(const ExpertArrays& arrays, int64_t expert, int64_t hidden, int64_t intermediate) {
  const int64_t step = arrays.interleaved ? 2 : 1;
  const int64_t up = arrays.interleaved ? 1 : intermediate;
  return {matrix(arrays.gate_up, expert, arrays.transposed, 0, step, intermediate),
          matrix(arrays.gate_up, expert, arrays.transposed, up, step, intermediate),
          matrix(arrays.down, expert, arrays.transposed, 0, 1, hidden),
          vector(arrays.gate_up_bias, expert, 0, step, intermediate),
          vector(arrays.gate_up_bias, expert, up, step, intermediate),
          vector(arrays.down_bias, expert, 0, 1, hidden)};
}

template <size_t n>
std::string text(const int64_t (&shape)[n]) {
  std::string all = "[";
  for (size_t i = 0; i < n; ++i) all += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return all + "]";
}

struct Sizes {
  int64_t experts, hidden, intermediate;
};

Sizes check(const ExpertArrays& arrays) {
  const auto& g = arrays.gate_up.shape;
  const auto& d = arrays.down.shape;
  const int row = arrays.transposed ? 2 : 1, col = arrays.transposed ? 1 : 2;
  const Sizes sizes{g[0], g[col], g[row] / 2};
  if (sizes.experts < 1 || sizes.hidden < 1 || sizes.intermediate < 1 || g[row] % 2 != 0 ||
      d[0] != sizes.experts || d[row] != sizes.hidden || d[col] != sizes.intermediate) {
    throw InvalidArgument(
        cat("gate_up ", text(g), " and down ", text(d), " are not those of gated experts; wanted ",
            arrays.transposed
                ? "[experts, hidden, 2 * intermediate] and [experts, intermediate, hidden]"
                : "[experts, 2 * intermediate, hidden] and [experts, hidden, intermediate]"));
  }
  const auto check_bias = [&](const StackedVectors& bias, const char* name, int64_t size) {
    if (bias.data != nullptr && (bias.shape[0] != sizes.experts || bias.shape[1] != size)) {
      throw InvalidArgument(
          cat(name, " is ", text(bias.shape), ", not [", sizes.experts, ", ", size, "]"));
    }
  };
  check_bias(arrays.gate_up_bias, "gate_up_bias", 2 * sizes.intermediate);
  check_bias(arrays.down_bias, "down_bias", sizes.hidden);
  return sizes;
}

}  // namespace

ExpertTable::ExpertTable(const ExpertArrays& arrays, Activation activation, WeightFormat format,
                         int threads, ExpertParts parts)
    : parts_(parts) {
  const Sizes sizes = check(arrays);
  if (threads < 1) throw InvalidArgument(cat("packing needs at least 1 thread, not ", threads));
  if (parts.parts < 1 || parts.part < -1 || parts.part >= parts.parts)
    throw InvalidArgument(cat("part ", parts.part, " of ", parts.parts, " of each expert"));
  num_experts_ = static_cast<int>(sizes.experts);
  const int first_part = std::max(parts.part, 0);
  experts_.resize((parts.part < 0 ? parts.parts : 1) * sizes.experts);
  std::vector<std::exception_ptr> errors(threads);
  RankThreads(threads, true).run([&](int member) {
    // Blocks, not turns: a rank's experts are in memory that its threads have touched first.
    const int64_t first = std::ssize(experts_) * member / threads,
                  last = std::ssize(experts_) * (member + 1) / threads;
    BufferArena arena;
    int64_t i = first;
    try {
      for (; i < last; ++i) {
        const MlpSource whole = source(arrays, i % sizes.experts, sizes.hidden, sizes.intermediate);
        const int part = first_part + static_cast<int>(i / sizes.experts);
        experts_[i] = std::make_shared<Mlp>(part_of(whole, part, parts.parts, format), activation,
                                            format, nullptr, &arena);
      }
    } catch (const InvalidArgument& error) {
      errors[member] = std::make_exception_ptr(
          InvalidArgument(cat("expert ", i % sizes.experts, ": ", error.what())));
    } catch (...) {
      errors[member] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

std::span<const std::shared_ptr<const Mlp>> ExpertTable::experts(int part) const {
  const int held = parts_.part < 0 ? part : part - parts_.part;
  const std::span all(experts_);
  if (held < 0 || (held + 1) * num_experts_ > std::ssize(all))
    throw InvalidArgument(cat("part ", part, " of the experts is not in this table"));
  return all.subspan(held * num_experts_, num_experts_);
}

size_t ExpertTable::bytes() const {
  size_t sum = 0;
  for (const auto& expert : experts_) sum += expert->bytes();
  return sum;
}

}  // namespace trimtab::python
