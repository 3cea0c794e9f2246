// SPDX-License-Identifier: Apache-2.0
// What a RouterConfig may say, checked once.
#include "router/router_config.h"

#include <cmath>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

void check(bool good, const auto&... parts) {
  if (!good) throw InvalidArgument(cat("router: ", parts...));
}

void check_sizes(const RouterConfig& c) {
  const int64_t most = RouterConfig::kMaxExperts;
  check(c.num_experts >= 1 && c.num_experts <= most, "num_experts is ", c.num_experts,
        ", must be 1 to ", most);
  check(c.num_zero_experts >= 0 && int64_t{c.num_experts} + c.num_zero_experts <= most,
        "num_zero_experts is ", c.num_zero_experts, " beside ", c.num_experts,
        " experts, together at most ", most);
  check(c.num_appended_experts >= 0 && c.num_appended_experts <= most, "num_appended_experts is ",
        c.num_appended_experts, ", must be 0 to ", most);
  check(c.top_k >= 1 && c.top_k <= c.num_experts, "top_k is ", c.top_k,
        ", must be 1 to num_experts = ", c.num_experts);
}

void check_picks_in_every_group(const RouterConfig& c) {
  if (!c.picks_in_every_group) return;
  check(c.num_groups > 1, "picks_in_every_group needs groups; num_groups is ", c.num_groups);
  check(c.top_k % c.num_groups == 0, "picks_in_every_group: top_k is ", c.top_k,
        ", must be a multiple of num_groups = ", c.num_groups);
  check(c.top_groups == c.num_groups, "picks_in_every_group: top_groups is ", c.top_groups,
        ", must be num_groups = ", c.num_groups, ", as no group is dropped");
  check(c.group_score == GroupScore::kMax,
        "picks_in_every_group: groups are not ranked; leave group_score as it is");
}

void check_groups(const RouterConfig& c) {
  check(c.num_groups >= 1 && c.num_experts % c.num_groups == 0, "num_groups is ", c.num_groups,
        ", must divide num_experts = ", c.num_experts);
  check(c.top_groups >= 1 && c.top_groups <= c.num_groups, "top_groups is ", c.top_groups,
        ", must be 1 to num_groups = ", c.num_groups);
  if (c.num_groups == 1) return;
  const int size = c.num_experts / c.num_groups;
  check(c.top_groups * size >= c.top_k, c.top_groups, " groups of ", size,
        " experts hold fewer than top_k = ", c.top_k);
  check(c.group_score != GroupScore::kTop2Sum || size >= 2,
        "the sum of the two best needs groups of 2, but ", c.num_groups, " groups of ",
        c.num_experts, " experts have ", size);
  check(c.num_zero_experts == 0, "groups (", c.num_groups, ") and zero experts (",
        c.num_zero_experts, ") do not go together");
}

void check_values(const RouterConfig& c) {
  check(std::isfinite(c.routed_scaling_factor) && c.routed_scaling_factor > 0.0F,
        "routed_scaling_factor is ", c.routed_scaling_factor, ", must be above 0 and finite");
  const int columns = c.num_experts + c.num_zero_experts;
  check(c.selection_bias.empty() || std::ssize(c.selection_bias) == columns, "selection_bias has ",
        c.selection_bias.size(), " values for ", columns, " experts");
  for (size_t i = 0; i < c.selection_bias.size(); ++i) {
    check(std::isfinite(c.selection_bias[i]), "selection_bias of expert ", i, " is ",
          c.selection_bias[i]);
  }
  const int64_t num_ids = std::ssize(c.hash_table);
  check(num_ids % c.top_k == 0, "hash_table has ", num_ids,
        " ids, no multiple of top_k = ", c.top_k);
  for (int64_t i = 0; i < num_ids; ++i) {
    check(c.hash_table[i] >= 0 && c.hash_table[i] < columns, "hash_table of token ", i / c.top_k,
          " names expert ", c.hash_table[i], " of ", columns);
  }
}

// An option that another one would silently ignore is refused.
void check_combinations(const RouterConfig& c) {
  const auto refuse = [](bool together, const char* a, const char* b) {
    check(!together, a, " and ", b, " do not go together");
  };
  const bool bias = !c.selection_bias.empty();
  const bool groups = c.num_groups > 1;
  const bool hash = !c.hash_table.empty();
  const bool scored = c.scoring != Scoring::kSoftmax;
  const bool custom = c.custom != nullptr;
  refuse(custom && scored, "a custom function", "a scoring other than the default");
  refuse(custom && groups, "a custom function", "groups");
  refuse(custom && bias, "a custom function", "selection_bias");
  refuse(custom && c.softmax_after_top_k, "a custom function", "softmax_after_top_k");
  refuse(custom && hash, "a custom function", "hash_table");
  refuse(hash && groups, "hash_table", "groups");
  refuse(hash && bias, "hash_table", "selection_bias");
  refuse(hash && c.softmax_after_top_k, "hash_table", "softmax_after_top_k");
  refuse(c.softmax_after_top_k && scored, "softmax_after_top_k", "a scoring other than softmax");
  refuse(c.softmax_after_top_k && groups, "softmax_after_top_k", "groups");
  refuse(c.softmax_after_top_k && bias, "softmax_after_top_k", "selection_bias");
  refuse(c.num_appended_experts > 0 && c.num_zero_experts > 0, "num_appended_experts",
         "num_zero_experts");
}

}  // namespace

void check_router_config(const RouterConfig& config) {
  check_sizes(config);
  check_groups(config);
  check_picks_in_every_group(config);
  check_values(config);
  check_combinations(config);
}

}  // namespace trimtab
