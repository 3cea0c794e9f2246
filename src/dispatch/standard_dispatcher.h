// SPDX-License-Identifier: Apache-2.0
// A dispatcher of standard rows whose exchanges keep all their memory in the lane's workspace.
#pragma once

#include <memory>
#include <new>

#include "dispatch/carver.h"
#include "dispatch/shape.h"
#include "dispatch/staged_exchange.h"

namespace trimtab {

// Exchange: a StagedExchange made of (shape, request, lane, memory), with
//   kName;
//   static Memory plan(Carver&, const RankShape&), which takes all that one exchange needs;
//   static void check(const Lane&), which throws InvalidArgument for a lane that it can't use.
template <class Exchange>
class StandardDispatcher final : public Dispatcher {
 public:
  StandardDispatcher(const DispatchShape& shape, int rank) : shape_(Exchange::kName, shape, rank) {}

  std::string_view name() const override { return Exchange::kName; }
  Format format() const override { return Format::kStandard; }
  DispatchShape shape() const override { return shape_.shape(); }
  int rank() const override { return shape_.rank; }
  bool carries_weights() const override { return true; }
  bool output_is_reduced() const override { return true; }
  int64_t max_rows() const override { return shape_.max_rows(); }
  size_t workspace_bytes() const override {
    Carver measure(nullptr);
    measure.take_bytes(sizeof(Exchange));
    Exchange::plan(measure, shape_);
    return measure.used();
  }

  ExchangePtr dispatch(const Request& request, Lane& lane) const override {
    shape_.check(request, lane);
    Exchange::check(lane);
    Carver carver(lane.workspace.take_bytes(workspace_bytes()));
    std::byte* place = carver.take_bytes(sizeof(Exchange));
    const auto memory = Exchange::plan(carver, shape_);
    return ExchangePtr(new (place) Exchange(shape_, request, lane, memory));
  }

 private:
  const RankShape shape_;
};

}  // namespace trimtab
