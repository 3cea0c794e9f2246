// SPDX-License-Identifier: Apache-2.0
// Experts in groups, one group a rank (MoGE): every rank has all tokens and picks some experts of
// each group, so nothing is sent. Each rank works on its own picks; the ranks' outputs are parts of
// one sum, which the caller makes.
#include <algorithm>
#include <memory>

#include "dispatch/dispatcher_of.h"
#include "dispatch/local_picks.h"
#include "dispatch/staged_exchange.h"

namespace trimtab {
namespace {

struct Memory {
  std::span<int32_t> ids;  // [max_tokens, top_k]
  LocalPicks::Memory local;
};

class GroupedExchange final : public StagedExchange {
 public:
  static constexpr const DispatcherKind& kKind = kind_of("grouped");
  static int64_t max_rows(const RankShape& shape) {
    return shape.num_local() > 0 ? shape.max_tokens * shape.top_k : 0;
  }
  static Memory plan(Carver& carver, const RankShape& shape) {
    Memory m;
    m.ids = carver.take<int32_t>(shape.max_tokens * shape.top_k);
    m.local = LocalPicks::plan(carver, shape, max_rows(shape));
    return m;
  }

  GroupedExchange(const RankShape& shape, const Request& request, Lane& lane, const Memory& memory)
      : StagedExchange(shape, request, lane),
        ids_(memory.ids.first(request.ids.size())),
        picks_(shape, memory.local) {
    std::ranges::copy(request.ids, ids_.begin());
  }

 private:
  bool come_to(Stage, bool) override { return true; }
  Tokens arrange() override {
    return picks_.arrange({{request_.x, request_.scales},
                           ids_,
                           request_.weights,
                           request_.top_k,
                           request_.weight_on_input},
                          team_);
  }
  void publish(ConstRows y, Left left) override {
    y_ = y;
    left_ = left;
  }
  void combine(Rows out) override { picks_.sum(y_, left_, out, team_); }

  const std::span<int32_t> ids_;
  LocalPicks picks_;
  ConstRows y_;
  Left left_ = Left::kWeightAndSum;
};

}  // namespace

std::unique_ptr<Dispatcher> make_grouped_dispatcher(const DispatchShape& shape, int rank) {
  return std::make_unique<DispatcherOf<GroupedExchange>>(shape, rank);
}

}  // namespace trimtab
