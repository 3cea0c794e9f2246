// SPDX-License-Identifier: Apache-2.0
#include "trimtab/dispatcher.h"

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "dispatch/kinds.h"
#include "trimtab/error.h"
#include "trimtab/slot_ranges.h"

namespace trimtab {
namespace {

struct Maker {
  std::string_view name;
  std::unique_ptr<Dispatcher> (*make)(const DispatchShape& shape, int rank,
                                      std::span<const int32_t> hosts);
};
template <auto kMake>
std::unique_ptr<Dispatcher> make(const DispatchShape& shape, int rank, std::span<const int32_t>) {
  return kMake(shape, rank);
}
std::unique_ptr<Dispatcher> make_all_gather(const DispatchShape& shape, int rank,
                                            std::span<const int32_t>) {
  return make_all_gather_dispatcher(shape, rank);
}
std::unique_ptr<Dispatcher> make_hybrid(const DispatchShape& shape, int rank,
                                        std::span<const int32_t> hosts) {
  return make_hybrid_dispatcher(shape, hosts, rank);
}
constexpr Maker kMakers[] = {
    {"all_gather", make_all_gather},
    {"all_to_all", make<make_all_to_all_dispatcher>},
    {"fused", make<make_fused_dispatcher>},
    {"grouped", make<make_grouped_dispatcher>},
    {"hybrid", make_hybrid},
    {"mc2", make<make_mc2_dispatcher>},
    {"packed", make<make_packed_dispatcher>},
    {"pull", make<make_pull_dispatcher>},
    {"pull_batched", make<make_pull_batched_dispatcher>},
};

constexpr bool every_kind_has_a_maker() {
  return std::ranges::equal(kDispatcherKinds, kMakers, {}, &DispatcherKind::name, &Maker::name);
}
static_assert(every_kind_has_a_maker());

}  // namespace

int64_t row_budget_of(const DispatchShape& shape, double over_level) {
  if (!(over_level >= 0))
    throw InvalidArgument(cat("a row budget of ", over_level, " times the level load"));
  if (over_level == 0) return 0;
  const int64_t ranks = SlotRanges(shape.first_slots).num_ranks(), top_k = shape.top_k;
  const double level = static_cast<double>(shape.max_tokens * top_k);
  // No rank can get more than all picks.
  const double rows = level * std::min(over_level, static_cast<double>(ranks));
  return std::max(ranks * top_k, static_cast<int64_t>(std::ceil(rows)));
}

void Exchange::add_part(Rows, bool) {
  throw InvalidArgument("exchange: add_part() is for dispatchers that sum parts over the ranks");
}

std::vector<std::unique_ptr<Communicator>> Dispatcher::make_groups(Communicator&) const {
  return {};
}

std::vector<Communicator*> pointers_to(std::span<const std::unique_ptr<Communicator>> groups) {
  std::vector<Communicator*> pointers;
  for (const auto& group : groups) pointers.push_back(group.get());
  return pointers;
}

std::unique_ptr<Dispatcher> make_dispatcher(std::string_view name, const DispatchShape& shape,
                                            int rank, std::span<const int32_t> hosts) {
  const std::string_view known = dispatcher_kind(name).name;
  const auto* const maker = std::ranges::find(kMakers, known, &Maker::name);
  return maker->make(shape, rank, hosts);
}

}  // namespace trimtab
