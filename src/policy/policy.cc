// SPDX-License-Identifier: Apache-2.0
#include "trimtab/policy.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/cat.h"
#include "policy/policies.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Policy> (*make)(const PolicyOptions&);
};

constexpr std::array kPolicies = {
    Entry{"static", make_static_policy}, Entry{"round_robin", make_round_robin_policy},
    Entry{"random", make_random_policy}, Entry{"deepseek", make_deepseek_policy},
    Entry{"swift", make_swift_policy},   Entry{"flashlb", make_flashlb_policy},
    Entry{"trim", make_trim_policy},     Entry{"optimal", make_optimal_policy},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kPolicies.size()> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kPolicies[i].name;
  return names;
}();

}  // namespace

Placement default_placement(int num_layers, int num_experts, std::vector<int> slots_per_rank) {
  if (num_layers < 1 || num_experts < 1 || slots_per_rank.empty()) {
    throw InvalidArgument(cat("a placement of ", num_layers, " layers x ", num_experts,
                              " experts on ", slots_per_rank.size(),
                              " ranks: at least 1 of each is needed"));
  }
  int64_t slots = 0;
  int64_t most = 0;
  for (size_t r = 0; r < slots_per_rank.size(); ++r) {
    if (slots_per_rank[r] < 0)
      throw InvalidArgument(cat("rank ", r, " has ", slots_per_rank[r], " slots"));
    slots += slots_per_rank[r];
    most = std::max<int64_t>(most, slots_per_rank[r]);
  }
  const auto ranks = static_cast<int64_t>(slots_per_rank.size());
  if (slots < num_experts) {
    std::string text = cat(num_experts, " experts do not fit in ", slots, " slots on ", ranks,
                           " ranks: at least ", (num_experts + ranks - 1) / ranks, " slots a rank");
    if (most > 0) text += cat(", or ", (num_experts + most - 1) / most, " ranks of ", most, ",");
    throw InvalidArgument(text + " are needed");
  }
  std::vector<int32_t> logical(cells(num_layers, slots));
  for (size_t i = 0; i < logical.size(); ++i) {
    logical[i] = static_cast<int32_t>(static_cast<int64_t>(i) % slots % num_experts);
  }
  return {num_layers, num_experts, std::move(slots_per_rank), std::move(logical)};
}

namespace {

// Which policy has an option, and how to leave it out for the others.
struct OwnOption {
  std::string_view name, policy;
  bool (*is_given)(const PolicyOptions&);
  void (*leave_out)(PolicyOptions&);
};

constexpr std::array kOwnOptions = {
    OwnOption{"preset", "trim", [](const PolicyOptions& o) { return !o.preset.empty(); },
              [](PolicyOptions& o) { o.preset.clear(); }},
    OwnOption{"time_budget", "trim",
              [](const PolicyOptions& o) { return o.time_budget_s.has_value(); },
              [](PolicyOptions& o) { o.time_budget_s.reset(); }},
    OwnOption{"move_price", "trim", [](const PolicyOptions& o) { return o.move_price.has_value(); },
              [](PolicyOptions& o) { o.move_price.reset(); }},
    OwnOption{"keep_slots", "deepseek", [](const PolicyOptions& o) { return !o.keep_slots; },
              [](PolicyOptions& o) { o.keep_slots = true; }},
    OwnOption{"seed", "random", [](const PolicyOptions& o) { return o.seed != 0; },
              [](PolicyOptions& o) { o.seed = 0; }}};

template <class Name>
void refuse_options_of_others(std::span<const Name> names, const PolicyOptions& options) {
  for (const OwnOption& option : kOwnOptions) {
    if (!option.is_given(options) || std::ranges::find(names, option.policy) != names.end())
      continue;
    std::string text = cat(option.name, ": only ", option.policy, " has it, and the policy is ");
    for (const Name& name : names) text += cat(&name == names.data() ? "" : ", ", name);
    throw InvalidArgument(text);
  }
}

const Entry& entry_of(std::string_view name) {
  for (const Entry& entry : kPolicies) {
    if (entry.name == name) return entry;
  }
  std::string text = cat("no policy '", name, "'; there are");
  for (const std::string_view known : kNames) text += cat(" ", known);
  throw InvalidArgument(text);
}

}  // namespace

std::unique_ptr<Policy> make_policy(std::string_view name, const PolicyOptions& options) {
  const Entry& entry = entry_of(name);
  refuse_options_of_others(std::span<const std::string_view>(&name, 1), options);
  return entry.make(options);
}

std::vector<std::unique_ptr<Policy>> make_policies(std::span<const std::string> names,
                                                   const PolicyOptions& options) {
  for (const std::string& name : names) entry_of(name);
  refuse_options_of_others(names, options);
  std::vector<std::unique_ptr<Policy>> policies;
  for (const std::string& name : names) {
    PolicyOptions own = options;
    for (const OwnOption& option : kOwnOptions) {
      if (option.policy != name) option.leave_out(own);
    }
    policies.push_back(entry_of(name).make(own));
  }
  return policies;
}

std::span<const std::string_view> policy_names() {
  return kNames;
}

}  // namespace trimtab
