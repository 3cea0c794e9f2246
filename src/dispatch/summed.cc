// SPDX-License-Identifier: Apache-2.0
// `grouped`, and the sum of its parts over the ranks: a reduce-scatter of the tokens and a gather
// of the sums. Each sum is made by one rank in the order of the ranks, so all ranks get the same
// bits. Further parts (shared experts that are cut over the ranks) go through the same two
// collectives.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/carver.h"
#include "base/cat.h"
#include "base/rows.h"
#include "dispatch/kinds.h"
#include "dispatch/row_tasks.h"
#include "dispatch/scaled_rows.h"
#include "dispatch/staged_exchange.h"
#include "dispatch/terms.h"
#include "trimtab/error.h"
#include "trimtab/layout.h"

namespace trimtab {
namespace {

struct Memory {
  std::span<uint64_t> own, all;  // [2], [ranks * 2] what must be the same on every rank
  std::span<int64_t> all_bytes;  // [ranks]
  std::span<int64_t> counts;     // [ranks] floats of the slice that each rank sums
  Rows parts;                    // f32 [2 * max_tokens, hidden] routed, then parts of their own
  Rows slice;                    // f32 [the most rows of a slice, hidden] sums of this rank
  Rows sums;                     // f32 [2 * max_tokens, hidden]
};

std::span<float> floats_of(Rows rows) {
  return {reinterpret_cast<float*>(rows.data), static_cast<size_t>(rows.rows * rows.cols)};
}

class SummedExchange final : public Exchange {
 public:
  SummedExchange(const Dispatcher& inner, const Request& request, const RankShape& shape,
                 Lane& lane, const Memory& memory)
      : lane_(lane),
        inner_lane_{lane.comm, lane.workspace, lane.team, {}, lane.trace},
        inner_(inner),
        request_(request),
        shape_(shape),
        comm_(lane.comm),
        m_(memory) {
    const Terms terms = with_request(shape.terms, request);
    m_.own[0] = static_cast<uint64_t>(request.x.rows);
    m_.own[1] = hash_of_terms(terms);
    agreement_ =
        comm_.all_gather_v(std::as_bytes(m_.own), std::as_writable_bytes(m_.all), m_.all_bytes);
    lane_.has_exchange = true;
  }
  SummedExchange(const SummedExchange&) = delete;
  SummedExchange& operator=(const SummedExchange&) = delete;
  ~SummedExchange() override {
    if (!drained_ && !ended_on_all_) comm_.abort("an exchange was dropped before it was drained");
    lane_.has_exchange = false;
  }

  bool poll(Stage stage) override { return advance(stage, false); }
  void wait(Stage stage) override { advance(stage, true); }
  const Tokens& tokens() const override { return local().tokens(); }
  void send_back(ConstRows y, Left left) override { local().send_back(y, left); }
  void add_part(Rows part, bool apart) override {
    if (started_ || part_.cols > 0)
      throw InvalidArgument("exchange: add_part() comes once, before kReturned");
    shape_.check_out(part, request_.x);
    part_ = part;
    apart_ = apart;
  }
  void finish(Rows out) override {
    if (!gathered_ || finished_)
      throw InvalidArgument("exchange: finish() comes once, after kReturned");
    shape_.check_out(out, request_.x);
    copy_rows(m_.sums.slice(0, request_.x.rows), out, lane_.team);
    if (apart_) copy_rows(m_.sums.slice(request_.x.rows, request_.x.rows), part_, lane_.team);
    finished_ = true;
  }

 private:
  static uint64_t hash_of_terms(const Terms& terms) {
    const auto* words = reinterpret_cast<const int32_t*>(&terms);
    return hash_of({words, sizeof(Terms) / sizeof(int32_t)});
  }

  Exchange& local() const {
    if (local_ == nullptr) throw InvalidArgument("exchange: tokens come with kArrived");
    return *local_;
  }

  bool advance(Stage stage, bool block) {
    switch (stage) {
      case Stage::kArrived:
        if (!agree(block)) return false;
        if (local_ == nullptr) local_ = inner_.dispatch(request_, inner_lane_);
        return reached(*local_, stage, block);
      case Stage::kReturned:
        if (!started_) {
          if (!reached(local(), stage, block)) return false;
          start();
        }
        if (!gathering_) {
          if (!done(scatter_, block)) return false;
          gather_ = comm_.all_gather_v(bytes_of(ConstRows(m_.slice.slice(0, own_.count))),
                                       bytes_of(m_.sums), m_.all_bytes);
          gathering_ = true;
        }
        return gathered_ = gathered_ || done(gather_, block);
      case Stage::kDrained:
        if (!finished_) throw InvalidArgument("exchange: kDrained comes after finish()");
        drained_ = reached(*local_, stage, block) && released(agreement_, block) &&
                   released(scatter_, block) && released(gather_, block);
        return drained_;
    }
    return false;
  }

  // Ranks with other tokens, or other terms, would add up what does not belong together.
  bool agree(bool block) {
    if (agreed_) return true;
    if (!done(agreement_, block)) return false;
    for (int r = 0; r < comm_.size(); ++r) {
      if (m_.all[2 * r] == m_.own[0] && m_.all[2 * r + 1] == m_.own[1]) continue;
      if (!released(agreement_, block)) return false;  // all ranks must find it
      ended_on_all_ = true;
      if (m_.all[2 * r] == m_.own[0]) {
        throw InvalidArgument(cat("summed: rank ", comm_.rank(), " and rank ", r,
                                  " come with different shapes, picks a token or placements; they "
                                  "must be the same on every rank"));
      }
      throw InvalidArgument(cat("summed: rank ", comm_.rank(), " comes with ", request_.x.rows,
                                " tokens, rank ", r, " with ", m_.all[2 * r],
                                "; all must have the same"));
    }
    return agreed_ = true;
  }

  // The parts are complete: each rank gets those of the slice that it sums.
  void start() {
    local_->finish(m_.parts.slice(0, request_.x.rows));
    int64_t rows = request_.x.rows;
    if (part_.cols > 0 && apart_) {
      copy_rows(part_, m_.parts.slice(rows, rows), lane_.team);
      rows *= 2;
    } else if (part_.cols > 0) {
      add_rows(part_, m_.parts.slice(0, rows), lane_.team);
    }
    for (int r = 0; r < comm_.size(); ++r)
      m_.counts[r] = token_slice(rows, comm_.size(), r).count * shape_.hidden;
    own_ = token_slice(rows, comm_.size(), comm_.rank());
    scatter_ = comm_.reduce_scatter_v(floats_of(m_.parts.slice(0, rows)), m_.counts,
                                      floats_of(m_.slice.slice(0, own_.count)));
    started_ = true;
  }

  Lane& lane_;
  Lane inner_lane_;
  const Dispatcher& inner_;
  ExchangePtr local_;  // of inner_, once the ranks have agreed
  const Request request_;
  const RankShape& shape_;
  Communicator& comm_;
  const Memory m_;
  Rows part_ = {};
  bool apart_ = false;
  TokenSlice own_;
  Pending agreement_, scatter_, gather_;
  bool agreed_ = false, started_ = false, gathering_ = false, gathered_ = false;
  bool finished_ = false, drained_ = false, ended_on_all_ = false;
};

class SummedDispatcher final : public Dispatcher {
 public:
  SummedDispatcher(const DispatchShape& shape, int rank)
      : inner_(make_grouped_dispatcher(shape, rank)), shape_("summed", shape, rank) {}

  const DispatcherKind& kind() const override { return kKind; }
  DispatchShape shape() const override { return shape_.shape(); }
  int rank() const override { return shape_.rank; }
  bool sums_parts() const override { return true; }
  int64_t max_rows() const override { return inner_->max_rows(); }
  size_t workspace_bytes() const override { return own_bytes() + inner_->workspace_bytes(); }

  ExchangePtr dispatch(const Request& request, Lane& lane) const override {
    shape_.check(request, lane);
    const size_t mark = lane.workspace.mark();
    try {
      Carver carver(lane.workspace.take_bytes(own_bytes()));
      std::byte* place = carver.take_bytes(sizeof(SummedExchange));
      const Memory memory = plan(carver);
      return ExchangePtr(new (place) SummedExchange(*inner_, request, shape_, lane, memory));
    } catch (...) {
      lane.workspace.release(mark);
      throw;
    }
  }

 private:
  static constexpr DispatcherKind kKind = [] {
    DispatcherKind kind = kind_of("grouped");
    kind.name = "summed";
    kind.summary = "as grouped, and every rank gets the sum";
    kind.output_is_reduced = true;
    return kind;
  }();

  size_t own_bytes() const {
    Carver measure(nullptr);
    measure.take_bytes(sizeof(SummedExchange));
    plan(measure);
    return measure.used();
  }
  Memory plan(Carver& carver) const {
    Memory m;
    const int64_t rows = 2 * shape_.max_tokens;
    m.own = carver.take<uint64_t>(2);
    m.all = carver.take<uint64_t>(int64_t{2} * shape_.ranks);
    m.all_bytes = carver.take<int64_t>(shape_.ranks);
    m.counts = carver.take<int64_t>(shape_.ranks);
    m.parts = carver.take_rows(rows, shape_.hidden, DType::kF32);
    m.slice =
        carver.take_rows(token_slice(rows, shape_.ranks, 0).count, shape_.hidden, DType::kF32);
    m.sums = carver.take_rows(rows, shape_.hidden, DType::kF32);
    return m;
  }

  const std::unique_ptr<const Dispatcher> inner_;
  const RankShape shape_;
};

}  // namespace

std::unique_ptr<Dispatcher> make_summed_dispatcher(const DispatchShape& shape, int rank) {
  return std::make_unique<SummedDispatcher>(shape, rank);
}

}  // namespace trimtab
