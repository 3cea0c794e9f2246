// SPDX-License-Identifier: Apache-2.0
// The makers of all policies, for the registry. A new policy adds its maker here and its name in
// policy.cc.
#pragma once

#include <memory>

#include "trimtab/policy.h"

namespace trimtab {

std::unique_ptr<Policy> make_static_policy(const PolicyOptions& options);
std::unique_ptr<Policy> make_round_robin_policy(const PolicyOptions& options);
std::unique_ptr<Policy> make_random_policy(const PolicyOptions& options);
std::unique_ptr<Policy> make_deepseek_policy(const PolicyOptions& options);
std::unique_ptr<Policy> make_swift_policy(const PolicyOptions& options);
std::unique_ptr<Policy> make_flashlb_policy(const PolicyOptions& options);
std::unique_ptr<Policy> make_trim_policy(const PolicyOptions& options);
std::unique_ptr<Policy> make_optimal_policy(const PolicyOptions& options);

}  // namespace trimtab
