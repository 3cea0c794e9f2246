// SPDX-License-Identifier: Apache-2.0
// A dispatcher whose exchanges keep all their memory in the lane's workspace.
#pragma once

#include <memory>
#include <new>
#include <vector>

#include "base/carver.h"
#include "base/cat.h"
#include "dispatch/kinds.h"
#include "dispatch/rounds.h"
#include "dispatch/shape.h"
#include "dispatch/staged_exchange.h"
#include "trimtab/error.h"

namespace trimtab {

// Exchange: a StagedExchange made of (shape, request, lane, memory). It has
//   kKind, its row of the table of dispatchers;
//   static Memory plan(Carver&, const Shape&), which takes all that one exchange needs;
// and, where the defaults of StagedExchange don't hold,
//   Shape, a RankShape;
//   static size_t later_bytes(const Shape&), the workspace that it takes once rows have arrived;
//   static std::vector<std::unique_ptr<Communicator>> make_groups(const Shape&, Communicator&);
//   static void check(const Shape&, const Lane&), which throws InvalidArgument for lanes that it
//   can't use.
template <class Exchange>
class DispatcherOf final : public Dispatcher, private RoundMaker {
 public:
  // more: what else Exchange::Shape is made of.
  template <class... More>
  DispatcherOf(const DispatchShape& shape, int rank, const More&... more)
      : shape_(kKind.name, shape, rank, more...) {
    const bool batched = kKind.format == Format::kBatched;
    if (batched ? shape.capacity < 1 : shape.capacity != 0) {
      throw InvalidArgument(cat(kKind.name, ": a capacity of ", shape.capacity,
                                " rows an expert, expected ", batched ? "at least 1" : "none"));
    }
    if (shape.exact_order && kKind.order == SumOrder::kByRank) {
      throw InvalidArgument(
          cat(kKind.name, " adds in an order that depends on the placement: no exact_order"));
    }
    if (shape.results != DType::kF32 && !kKind.sends_results) {
      throw InvalidArgument(cat(
          kKind.name, " can't send results as ", trimtab::name(shape.results), ", only ",
          dispatcher_names([](const DispatcherKind& kind) { return kind.sends_results; }), " can"));
    }
    if (shape.row_budget != 0 && !kKind.takes_row_budget) {
      throw InvalidArgument(cat(kKind.name, " takes no row budget: ",
                                batched
                                    ? "its capacity bounds the rows of each expert"
                                    : "its ranks exchange nothing, so they can't agree on rounds"));
    }
    if (shape.num_experts != 0 && !kKind.shares_out) {
      throw InvalidArgument(cat(
          kKind.name, " can't share picks out over replicas; ",
          dispatcher_names([](const DispatcherKind& kind) { return kind.shares_out; }), " can"));
    }
  }

  const DispatcherKind& kind() const override { return kKind; }
  DispatchShape shape() const override { return shape_.shape(); }
  int rank() const override { return shape_.rank; }
  std::vector<std::unique_ptr<Communicator>> make_groups(Communicator& comm) const override {
    return Exchange::make_groups(shape_, comm);
  }
  int64_t max_rows() const override {
    return kKind.format == Format::kBatched ? shape_.num_local() * shape_.capacity
                                            : Exchange::max_rows(shape_);
  }
  size_t workspace_bytes() const override { return first_bytes() + Exchange::later_bytes(shape_); }

  ExchangePtr dispatch(const Request& request, Lane& lane) const override {
    shape_.check(request, lane);
    Exchange::check(shape_, lane);
    const size_t first = first_bytes(), needed = workspace_bytes();
    if (const size_t left = lane.workspace.capacity() - lane.workspace.mark(); left < needed) {
      throw InvalidArgument(
          cat(kKind.name, " takes ", needed, " bytes of workspace, ", left, " are left"));
    }
    std::byte* const memory = lane.workspace.take_bytes(first);
    if (!shape_.bounded()) return ExchangePtr(make_round(request, lane, memory));
    return ExchangePtr(new (memory) Rounds(*this, shape_, request, lane, memory + kRoundsBytes));
  }

 private:
  static constexpr const DispatcherKind& kKind = Exchange::kKind;
  static constexpr size_t kRoundsBytes = Workspace::padded(sizeof(Rounds));

  StagedExchange* make_round(const Request& request, Lane& lane, std::byte* memory) const override {
    Carver carver(memory);
    std::byte* const place = carver.take_bytes(sizeof(Exchange));
    return new (place) Exchange(shape_, request, lane, Exchange::plan(carver, shape_));
  }

  // What an exchange takes when it begins.
  size_t first_bytes() const {
    Carver measure(nullptr);
    if (shape_.bounded()) measure.take_bytes(kRoundsBytes);
    measure.take_bytes(sizeof(Exchange));
    Exchange::plan(measure, shape_);
    return measure.used();
  }

  const typename Exchange::Shape shape_;
};

}  // namespace trimtab
