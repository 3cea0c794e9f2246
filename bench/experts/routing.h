// SPDX-License-Identifier: Apache-2.0
// Picks as a router would make them, without a router.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace trimtab::bench {

// natural: every expert is as likely. uneven: chances are log-normal (0.8), so the most popular of
// 128 experts is drawn about 5 times as often as the mean, as in recordings of real models. skewed:
// the n-th most popular expert is drawn with a chance of 1 / n (Zipf).
enum class RoutingKind { kNatural, kUneven, kSkewed };

std::string_view routing_name(RoutingKind kind);
// Throws InvalidArgument.
RoutingKind find_routing(std::string_view name);

struct Picks {
  std::vector<int32_t> ids;    // [tokens, top_k], distinct in a token
  std::vector<float> weights;  // [tokens, top_k], of sum 1
};

// A function of its arguments; which experts are popular does not depend on the seed.
Picks route(RoutingKind kind, int64_t tokens, int experts, int top_k, uint64_t seed);

std::vector<int32_t> counts_of(std::span<const int32_t> ids, int experts);

}  // namespace trimtab::bench
