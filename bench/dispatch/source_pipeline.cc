// SPDX-License-Identifier: Apache-2.0
#include "bench/dispatch/source_pipeline.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "dispatch/scaled_rows.h"
#include "dispatch/shape.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab::bench {
namespace {

using Index = std::vector<int32_t>;

// to[i] = from[index[i]], as index_select does.
template <class AnyRows>
void select_rows(const AnyRows& from, const Index& index, int64_t divisor, Rows to) {
  for (size_t i = 0; i < index.size(); ++i) {
    std::memcpy(to.row(i), from.row(index[i] / divisor), to.row_bytes());
  }
}

// A stable argsort.
Index argsort(const std::vector<int32_t>& keys) {
  Index order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t i) { return keys[i]; });
  return order;
}

Index inverse(const Index& order) {
  Index at(order.size());
  for (int32_t i = 0; i < std::ssize(order); ++i) at[order[i]] = i;
  return at;
}

struct Buffers {
  explicit Buffers(const RankShape& s)
      : permuted(shape_bytes(s.dtype, s.max_tokens, s.top_k, s.hidden)),
        arrived(shape_bytes(s.dtype, s.max_rows(), s.hidden)),
        sorted(arrived.bytes()),
        unsorted(cells(s.max_rows(), s.hidden) * sizeof(float)),
        returned(cells(s.max_tokens, s.top_k, s.hidden) * sizeof(float)),
        restored(returned.bytes()) {}
  Buffer permuted, arrived, sorted, unsorted, returned, restored;
};

class SourceExchange final : public Exchange {
 public:
  SourceExchange(const RankShape& shape, const Request& request, Communicator& comm,
                 Buffers& buffers)
      : shape_(shape), request_(request), comm_(comm), b_(buffers) {
    preprocess();
    permute();
    send();
  }

  bool poll(Stage) override { return true; }  // every step waits
  void wait(Stage) override {}
  const Tokens& tokens() const override { return tokens_; }

  void send_back(ConstRows y, Left) override {
    const int64_t rows = std::ssize(order_);
    const Rows unsorted(b_.unsorted.as<float>(), rows, shape_.hidden);
    select_rows(y, inverse(order_), 1, unsorted);
    const size_t row_bytes = unsorted.row_bytes();
    std::vector<int64_t> counts(bytes_in_), sizes(bytes_in_.size());
    for (int64_t& bytes : counts) bytes = bytes / row_size() * row_bytes;
    Pending pending = comm_.all_to_all_v(bytes_of(ConstRows(unsorted)), counts,
                                         {b_.returned.data(), b_.returned.bytes()}, sizes);
    pending.wait();
    pending.wait_released();
  }

  // Un-permute to [tokens, top_k], then multiply by the weights and sum.
  void finish(Rows out) override {
    const int64_t picks = std::ssize(permutation_);
    const ConstRows returned(b_.returned.as<float>(), picks, shape_.hidden);
    const Rows restored(b_.restored.as<float>(), picks, shape_.hidden);
    select_rows(returned, inverse(permutation_), 1, restored);
    for (int64_t pick = 0; pick < picks; ++pick) {
      float* row = restored.row_as<float>(pick);
      for (int h = 0; h < shape_.hidden; ++h) row[h] *= request_.weights[pick];
    }
    for (int64_t t = 0; t < out.rows; ++t) {
      float* sum = out.row_as<float>(t);
      std::fill_n(sum, out.cols, 0.0F);
      for (int64_t pick = t * request_.top_k; pick < (t + 1) * request_.top_k; ++pick) {
        const float* row = restored.row_as<float>(pick);
        for (int h = 0; h < shape_.hidden; ++h) sum[h] += row[h];
      }
    }
  }

 private:
  size_t row_size() const { return shape_bytes(shape_.dtype, shape_.hidden); }

  // Histogram over all experts, gathered; the counts are needed on the host before rows can be
  // sent.
  void preprocess() {
    std::vector<int32_t> histogram(shape_.num_slots());
    for (const int32_t id : request_.ids) ++histogram[id];
    all_counts_.resize(cells(shape_.num_slots(), shape_.ranks));
    std::vector<int64_t> sizes(shape_.ranks);
    Pending pending = comm_.all_gather_v(std::as_bytes(std::span(histogram)),
                                         std::as_writable_bytes(std::span(all_counts_)), sizes);
    pending.wait();
    pending.wait_released();
    for (int r = 0; r < shape_.ranks; ++r) {
      int64_t rows = 0;
      for (int s = 0; s < shape_.num_slots_of(r); ++s) rows += histogram[shape_.first_slots[r] + s];
      bytes_out_.push_back(rows * row_size());
    }
  }

  void permute() {
    permutation_ = argsort({request_.ids.begin(), request_.ids.end()});
    const int64_t picks = std::ssize(permutation_);
    select_rows(request_.x, permutation_, request_.top_k,
                Rows(b_.permuted.data(), picks, shape_.hidden, shape_.hidden, shape_.dtype));
  }

  void send() {
    bytes_in_.resize(shape_.ranks);
    Pending pending =
        comm_.all_to_all_v({b_.permuted.data(), permutation_.size() * row_size()}, bytes_out_,
                           {b_.arrived.data(), b_.arrived.bytes()}, bytes_in_);
    pending.wait();
    pending.wait_released();
    // The second permutation: from source-major to expert-major.
    std::vector<int32_t> experts;
    counts_.assign(shape_.num_local(), 0);
    for (int s = 0; s < shape_.ranks; ++s) {
      for (int e = 0; e < shape_.num_local(); ++e) {
        const int slot = s * shape_.num_slots() + shape_.first_slot() + e;
        experts.insert(experts.end(), all_counts_[slot], e);
        counts_[e] += all_counts_[slot];
      }
    }
    order_ = argsort(experts);
    const int64_t rows = std::ssize(order_);
    const ConstRows arrived(b_.arrived.data(), rows, shape_.hidden, shape_.hidden, shape_.dtype);
    const Rows sorted(b_.sorted.data(), rows, shape_.hidden, shape_.hidden, shape_.dtype);
    select_rows(arrived, order_, 1, sorted);
    tokens_ = {Format::kStandard, sorted, {}, counts_};
  }

  const RankShape& shape_;
  const Request request_;
  Communicator& comm_;
  Buffers& b_;
  std::vector<int32_t> all_counts_, counts_;
  std::vector<int64_t> bytes_out_, bytes_in_;
  Index permutation_, order_;
  Tokens tokens_;
};

class SourcePipeline final : public Dispatcher {
 public:
  SourcePipeline(const DispatchShape& shape, int rank)
      : shape_("source", shape, rank), buffers_(shape_) {
    if (shape_.scales().cols > 0)
      throw InvalidArgument("the source's pipeline is measured with F32 and BF16 rows");
  }
  const DispatcherKind& kind() const override { return kKind; }
  DispatchShape shape() const override { return shape_.shape(); }
  int rank() const override { return shape_.rank; }
  int64_t max_rows() const override { return shape_.max_rows(); }
  size_t workspace_bytes() const override { return sizeof(SourceExchange) + 64; }
  // One exchange at a time: the rows lie in the dispatcher, so that they are allocated once.
  ExchangePtr dispatch(const Request& request, Lane& lane) const override {
    shape_.check(request, lane);
    std::byte* place = lane.workspace.take_bytes(sizeof(SourceExchange));
    return ExchangePtr(new (place) SourceExchange(shape_, request, lane.comm, buffers_));
  }

 private:
  static constexpr DispatcherKind kKind = {
      .name = "source",
      .summary = "the pipeline that all_to_all is compared with",
      .carries_weights = false};

  const RankShape shape_;
  mutable Buffers buffers_;
};

}  // namespace

std::unique_ptr<Dispatcher> make_source_pipeline(const DispatchShape& shape, int rank) {
  return std::make_unique<SourcePipeline>(shape, rank);
}

}  // namespace trimtab::bench
