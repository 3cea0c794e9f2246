// SPDX-License-Identifier: Apache-2.0
#include "dispatch/shape.h"

#include <limits>

#include "base/cat.h"
#include "base/rows.h"
#include "trimtab/error.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {
namespace {

void check_first_slots(std::string_view dispatcher, std::span<const int32_t> first_slots,
                       int rank) {
  if (first_slots.size() < 2 || first_slots.front() != 0) {
    throw InvalidArgument(cat(dispatcher,
                              ": first_slots needs one entry a rank and one more, from 0; got ",
                              first_slots.size(), " entries"));
  }
  const int ranks = SlotRanges(first_slots).num_ranks();
  if (rank < 0 || rank >= ranks)
    throw InvalidArgument(cat(dispatcher, ": rank ", rank, " of ", ranks));
  for (size_t r = 0; r + 1 < first_slots.size(); ++r) {
    if (first_slots[r + 1] < first_slots[r]) {
      throw InvalidArgument(cat(dispatcher, ": rank ", r, " holds the slots from ", first_slots[r],
                                " to ", first_slots[r + 1]));
    }
  }
}

// Can rows, or results, of so many elements travel in this type?
void check_type(std::string_view dispatcher, const char* what, DType dtype, int hidden) {
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kI8 &&
      dtype != DType::kF8E4M3) {
    throw InvalidArgument(cat(dispatcher, ": ", what, " of dtype ", name(dtype),
                              "; F32, BF16, I8 and F8_E4M3 can travel"));
  }
  if (dtype == DType::kF8E4M3 && hidden % kMxBlock != 0) {
    throw InvalidArgument(cat(dispatcher, ": F8_E4M3 ", what, " have a scale for each ", kMxBlock,
                              " elements; hidden ", hidden, " is no multiple"));
  }
}

}  // namespace

RankShape::RankShape(std::string_view dispatcher, const DispatchShape& shape, int r)
    : dispatcher_name(dispatcher),
      rank(r),
      max_tokens(shape.max_tokens),
      hidden(shape.hidden),
      top_k(shape.top_k),
      dtype(shape.dtype),
      results(shape.results),
      first_slots(shape.first_slots.begin(), shape.first_slots.end()),
      capacity(shape.capacity),
      exact_order(shape.exact_order),
      num_experts(shape.num_experts),
      row_budget(shape.row_budget),
      terms(terms_of(dispatcher, shape)) {
  check_first_slots(dispatcher, first_slots, rank);
  ranks = SlotRanges(first_slots).num_ranks();
  for (int owner = 0; owner < ranks; ++owner) {
    ranks_of_slots.resize(first_slots[owner + 1], owner);
  }
  if (max_tokens < 0 || hidden < 1 || top_k < 1) {
    throw InvalidArgument(cat(dispatcher, ": impossible shape: max_tokens ", max_tokens,
                              ", hidden ", hidden, ", top_k ", top_k));
  }
  check_type(dispatcher, "rows", dtype, hidden);
  check_type(dispatcher, "results", results, hidden);
  // Rows are counted in int32. 16 bytes an element: no sum of the parts of a workspace overflows.
  int64_t picks = 0, elements = 0;
  if (__builtin_mul_overflow(max_tokens, int64_t{ranks} * top_k, &picks) ||
      picks > std::numeric_limits<int32_t>::max() ||
      __builtin_mul_overflow(picks, int64_t{hidden} * 16, &elements)) {
    throw InvalidArgument(cat(dispatcher, ": ", ranks, " ranks x ", max_tokens, " tokens x top_k ",
                              top_k, " x hidden ", hidden, " is more than can be addressed"));
  }
  if (num_experts < 0 || num_experts > num_slots()) {
    throw InvalidArgument(
        cat(dispatcher, ": ", num_experts, " logical experts in ", num_slots(), " slots"));
  }
  if (row_budget != 0 && row_budget < int64_t{ranks} * top_k) {
    throw InvalidArgument(cat(dispatcher, ": a row budget of ", row_budget, " for ", ranks,
                              " ranks, of which one token each may bring ", ranks * int64_t{top_k},
                              " rows; give at least so many, or 0 for no budget"));
  }
  int64_t places = 0;
  if (capacity < 0 || __builtin_mul_overflow(capacity, int64_t{num_slots()}, &places) ||
      places > std::numeric_limits<int32_t>::max() ||
      __builtin_mul_overflow(places, int64_t{hidden} * 16, &elements)) {
    throw InvalidArgument(cat(dispatcher, ": a capacity of ", capacity, " rows for each of ",
                              num_slots(), " experts can't be addressed"));
  }
}

void RankShape::check(const Request& request, const Lane& lane) const {
  if (lane.comm.size() != ranks || lane.comm.rank() != rank) {
    throw InvalidArgument(cat("dispatcher for rank ", rank, " of ", ranks,
                              " used in the lane of rank ", lane.comm.rank(), " of ",
                              lane.comm.size()));
  }
  if (lane.has_exchange)
    throw InvalidArgument("dispatch: another exchange is in flight in this lane");
  check_rows(request);
  const ConstRows& x = request.x;
  if (request.top_k < 1 || request.top_k > top_k) {
    throw InvalidArgument(cat("dispatch: top_k ", request.top_k, ", expected 1 to ", top_k));
  }
  if (request.weight_on_input && request.top_k != 1) {
    throw InvalidArgument(cat("dispatch: weight_on_input needs top_k 1, got ", request.top_k));
  }
  if (request.weight_on_input && dtype == DType::kF8E4M3) {
    throw InvalidArgument(
        "dispatch: weight_on_input can't weigh F8_E4M3 rows; weigh them before they are quantised");
  }
  const int64_t picks = x.rows * request.top_k;
  if (std::ssize(request.ids) != picks || std::ssize(request.weights) != picks) {
    throw InvalidArgument(cat("dispatch: ", request.ids.size(), " ids and ", request.weights.size(),
                              " weights for ", x.rows, " tokens with top_k ", request.top_k));
  }
  check_replicas(request);
  check_ids(request);
}

void RankShape::check_rows(const Request& request) const {
  const ConstRows& x = request.x;
  if (x.dtype != dtype || x.cols != hidden || x.stride < x.cols) {
    throw InvalidArgument(cat("dispatch: x is ", name(x.dtype), " with ", x.cols,
                              " columns and stride ", x.stride, ", expected ", name(dtype),
                              " with ", hidden));
  }
  if (x.rows < 0 || x.rows > max_tokens) {
    throw InvalidArgument(cat("dispatch: ", x.rows, " tokens on rank ", rank, ", at most ",
                              max_tokens, " were reserved for"));
  }
  const ScaleShape expected = scales();
  const ConstRows& given = request.scales;
  if (expected.cols == 0 ? given.rows != 0
                         : given.rows != x.rows || given.cols != expected.cols ||
                               given.dtype != expected.dtype || given.stride < given.cols) {
    throw InvalidArgument(cat("dispatch: scales ", name(given.dtype), " [", given.rows, ", ",
                              given.cols, "] with stride ", given.stride, " for ", x.rows,
                              " rows of ", name(dtype), ", expected ", name(expected.dtype), " [",
                              expected.cols == 0 ? 0 : x.rows, ", ", expected.cols, "]"));
  }
}

void RankShape::check_replicas(const Request& request) const {
  const SplitTable* table = request.replicas.table;
  if (table == nullptr) return;
  if (num_experts == 0)
    throw InvalidArgument("dispatch: a request with replicas, but the shape has no num_experts");
  if (table->num_experts != num_experts || table->num_slots != num_slots() ||
      table->num_ranks != ranks) {
    throw InvalidArgument(cat("dispatch: replicas of ", table->num_experts, " experts in ",
                              table->num_slots, " slots of ", table->num_ranks, " ranks, expected ",
                              num_experts, ", ", num_slots(), " and ", ranks));
  }
  check_cost(request.replicas.rule, *table, request.replicas.cost);
}

void RankShape::check_ids(const Request& request) const {
  const int end = request.replicas.table == nullptr ? num_slots() : num_experts;
  for (int64_t i = 0; i < std::ssize(request.ids); ++i) {
    const int32_t id = request.ids[i];
    if (id >= -1 && id < end) continue;
    throw InvalidArgument(cat("dispatch: token ", i / request.top_k, ", pick ", i % request.top_k,
                              ": expert id ", id, " is not in [-1, ", end, ")"));
  }
}

void RankShape::check_answer(ConstRows y, Left left, const Tokens& tokens) const {
  if (left == Left::kNothing && tokens.picks.top_k == 0) {
    throw InvalidArgument(
        cat(dispatcher_name,
            ": send_back: Left::kNothing, but rows here are one per pick, not one "
            "per token; use experts that leave the sum, or all_gather, or packed "
            "without exact_order"));
  }
  const int64_t rows = left == Left::kNothing ? tokens.picks.tokens() : tokens.x.rows;
  if (y.dtype != DType::kF32 || y.rows != rows || y.cols != hidden || y.stride < y.cols) {
    throw InvalidArgument(cat("send_back: y is ", name(y.dtype), " [", y.rows, ", ", y.cols,
                              "] with stride ", y.stride, ", expected F32 [", rows, ", ", hidden,
                              "]"));
  }
}

void RankShape::check_out(Rows out, ConstRows x) const {
  if (out.dtype != DType::kF32 || out.rows != x.rows || out.cols != hidden ||
      out.stride < out.cols) {
    throw InvalidArgument(cat("finish: out is ", name(out.dtype), " [", out.rows, ", ", out.cols,
                              "] with stride ", out.stride, ", expected F32 [", x.rows, ", ",
                              hidden, "]"));
  }
  if (overlap(out, x)) throw InvalidArgument("finish: out overlaps the x of the request");
}

}  // namespace trimtab
