// SPDX-License-Identifier: Apache-2.0
// Tensor-parallel ranks, which all hold the same tokens: each takes a slice through another
// dispatcher, and the slices of the output are gathered. Into memory of the exchange, not the
// caller's rows: x may still be read.
#include <memory>
#include <utility>
#include <vector>

#include "base/carver.h"
#include "base/cat.h"
#include "dispatch/row_tasks.h"
#include "dispatch/scaled_rows.h"
#include "dispatch/slice_of_request.h"
#include "dispatch/staged_exchange.h"
#include "trimtab/error.h"
#include "trimtab/layout.h"

namespace trimtab {
namespace {

struct Memory {
  Rows own;                       // f32 [slice, hidden] the output of this rank's slice
  Rows all;                       // f32 [max_tokens, hidden]
  std::span<int64_t> all_bytes;   // [ranks of the group]
  std::span<int64_t> tokens;      // [1] of the batch
  std::span<int64_t> all_tokens;  // [ranks of the group] the same of each rank
};

class SlicedExchange final : public Exchange {
 public:
  // x: of the whole batch.
  SlicedExchange(const Dispatcher& inner, const Request& slice, ConstRows x, const RankShape& shape,
                 Lane& lane, const Memory& memory)
      : lane_(lane),
        inner_lane_{lane.comm, lane.workspace, lane.team,
                    lane.groups.first(lane.groups.size() - 1)},
        inner_(inner.dispatch(slice, inner_lane_)),
        x_(x),
        shape_(shape),
        group_(*lane.groups.back()),
        m_(memory) {
    m_.tokens[0] = x.rows;
    counts_ = group_.all_gather_v(std::as_bytes(m_.tokens), std::as_writable_bytes(m_.all_tokens),
                                  m_.all_bytes);
    lane_.has_exchange = true;
  }
  SlicedExchange(const SlicedExchange&) = delete;
  SlicedExchange& operator=(const SlicedExchange&) = delete;
  ~SlicedExchange() override {
    // Before the gather no peer reads what is this exchange's own.
    if (started_ && !drained_) group_.abort("an exchange was dropped before it was drained");
    lane_.has_exchange = false;
  }

  bool poll(Stage stage) override { return advance(stage, false); }
  void wait(Stage stage) override { advance(stage, true); }
  const Tokens& tokens() const override { return inner_->tokens(); }
  void send_back(ConstRows y, Left left) override { inner_->send_back(y, left); }
  void finish(Rows out) override {
    if (!gathered_ || finished_)
      throw InvalidArgument("exchange: finish() comes once, after kReturned");
    shape_.check_out(out, x_);
    if (more()) {
      inner_->finish(m_.own);
    } else {
      copy_rows(m_.all.slice(0, x_.rows), out, lane_.team);
    }
    finished_ = true;
  }
  bool more() const override { return inner_->more(); }

 private:
  bool advance(Stage stage, bool block) {
    switch (stage) {
      case Stage::kArrived:
        if (between_rounds_) between_rounds_ = gathered_ = finished_ = false;
        return compare_tokens(block) && reached(*inner_, stage, block);
      case Stage::kReturned:
        if (!started_) {
          if (!reached(*inner_, stage, block)) return false;
          if (more()) return gathered_ = true;  // only this rank's slice goes on
          inner_->finish(m_.own);
          outputs_ =
              group_.all_gather_v(bytes_of(ConstRows(m_.own)), bytes_of(m_.all), m_.all_bytes);
          started_ = true;
        }
        gathered_ = gathered_ || done(outputs_, block);
        return gathered_;
      case Stage::kDrained:
        if (!finished_) throw InvalidArgument("exchange: kDrained comes after finish()");
        if (more()) return between_rounds_ = reached(*inner_, stage, block);
        drained_ =
            reached(*inner_, stage, block) && released(counts_, block) && released(outputs_, block);
        return drained_;
    }
    return false;
  }

  // Ranks with unequal batches would put together slices that do not belong together.
  bool compare_tokens(bool block) {
    if (compared_) return true;
    if (!done(counts_, block)) return false;
    const auto other =
        std::ranges::find_if(m_.all_tokens, [this](int64_t tokens) { return tokens != x_.rows; });
    if (other == m_.all_tokens.end()) return compared_ = true;
    if (!released(counts_, block)) return false;  // all ranks must find it
    throw InvalidArgument(cat("sliced: rank ", group_.rank(), " of its group comes with ", x_.rows,
                              " tokens, rank ", other - m_.all_tokens.begin(), " with ", *other,
                              "; all must have the same"));
  }

  Lane& lane_;
  Lane inner_lane_;
  ExchangePtr inner_;
  const ConstRows x_;
  const RankShape& shape_;
  Communicator& group_;
  const Memory m_;
  Pending counts_, outputs_;
  bool compared_ = false, started_ = false, gathered_ = false, finished_ = false, drained_ = false;
  bool between_rounds_ = false;
};

class SlicedDispatcher final : public Dispatcher {
 public:
  SlicedDispatcher(std::unique_ptr<Dispatcher> inner, int64_t max_tokens, int most_slices)
      : inner_(checked(std::move(inner))),
        kind_(kind_over(inner_->kind())),
        shape_("sliced", whole(*inner_, max_tokens), inner_->rank()),
        most_slices_(most_slices > 0 ? most_slices : shape_.ranks) {
    if (!inner_->output_is_reduced()) {
      throw InvalidArgument(
          cat("sliced: ", inner_->name(), " leaves parts of sums; slices need whole outputs"));
    }
  }

  const DispatcherKind& kind() const override { return kind_; }
  DispatchShape shape() const override { return shape_.shape(); }
  int rank() const override { return inner_->rank(); }
  int64_t max_rows() const override { return inner_->max_rows(); }
  size_t workspace_bytes() const override { return own_bytes() + inner_->workspace_bytes(); }
  std::vector<std::unique_ptr<Communicator>> make_groups(Communicator& comm) const override {
    return inner_->make_groups(comm);
  }

  ExchangePtr dispatch(const Request& request, Lane& lane) const override {
    if (lane.groups.empty() || lane.groups.back()->size() > most_slices_) {
      throw InvalidArgument("sliced needs the tensor-parallel group as the lane's groups.back()");
    }
    shape_.check(request, lane);
    const size_t mark = lane.workspace.mark();
    try {
      Carver carver(lane.workspace.take_bytes(own_bytes()));
      std::byte* place = carver.take_bytes(sizeof(SlicedExchange));
      Memory memory = plan(carver);
      const TokenSlice slice =
          token_slice(request.x.rows, lane.groups.back()->size(), lane.groups.back()->rank());
      memory.own = memory.own.slice(0, slice.count);
      memory.all_bytes = memory.all_bytes.first(lane.groups.back()->size());
      memory.all_tokens = memory.all_tokens.first(memory.all_bytes.size());
      return ExchangePtr(
          new (place) SlicedExchange(*inner_, slice_of_request(request, slice.first, slice.count),
                                     request.x, shape_, lane, memory));
    } catch (...) {
      lane.workspace.release(mark);
      throw;
    }
  }

 private:
  static DispatchShape whole(const Dispatcher& inner, int64_t max_tokens) {
    DispatchShape shape = inner.shape();
    shape.max_tokens = max_tokens;
    return shape;
  }
  size_t own_bytes() const {
    Carver measure(nullptr);
    measure.take_bytes(sizeof(SlicedExchange));
    plan(measure);
    return measure.used();
  }
  Memory plan(Carver& carver) const {
    Memory m;
    m.own = carver.take_rows(inner_->shape().max_tokens, shape_.hidden, DType::kF32);
    m.all = carver.take_rows(shape_.max_tokens, shape_.hidden, DType::kF32);
    m.all_bytes = carver.take<int64_t>(most_slices_);
    m.tokens = carver.take<int64_t>(1);
    m.all_tokens = carver.take<int64_t>(most_slices_);
    return m;
  }

  static std::unique_ptr<Dispatcher> checked(std::unique_ptr<Dispatcher> inner) {
    if (inner == nullptr) throw InvalidArgument("sliced: no dispatcher to slice for");
    return inner;
  }
  static DispatcherKind kind_over(DispatcherKind inner) {
    inner.name = "sliced";
    return inner;
  }

  const std::unique_ptr<const Dispatcher> inner_;
  const DispatcherKind kind_;
  const RankShape shape_;  // of whole batches
  const int most_slices_;
};

}  // namespace

std::unique_ptr<Dispatcher> make_sliced_dispatcher(std::unique_ptr<Dispatcher> inner,
                                                   int64_t max_tokens, int most_slices) {
  return std::make_unique<SlicedDispatcher>(std::move(inner), max_tokens, most_slices);
}

}  // namespace trimtab
