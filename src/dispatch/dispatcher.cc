// SPDX-License-Identifier: Apache-2.0
#include "trimtab/dispatcher.h"

#include <algorithm>

#include "dispatch/kinds.h"

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
