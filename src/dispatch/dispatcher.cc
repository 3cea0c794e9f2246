// SPDX-License-Identifier: Apache-2.0
#include "trimtab/dispatcher.h"

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

struct Named {
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
constexpr Named kDispatchers[] = {
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

}  // namespace

std::vector<std::unique_ptr<Communicator>> Dispatcher::make_groups(Communicator&) const {
  return {};
}

std::unique_ptr<Dispatcher> make_dispatcher(std::string_view name, const DispatchShape& shape,
                                            int rank, std::span<const int32_t> hosts) {
  std::string names;
  for (const Named& known : kDispatchers) {
    if (known.name == name) return known.make(shape, rank, hosts);
    names += cat(names.empty() ? "" : ", ", known.name);
  }
  throw InvalidArgument(cat("unknown dispatcher \"", name, "\"; there are: ", names));
}

}  // namespace trimtab
