// SPDX-License-Identifier: Apache-2.0
#include "routed_arrays.h"

#include <utility>

#include "base/cat.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

void check_picks(size_t tokens, size_t top_k, size_t wanted_tokens, int wanted_top_k,
                 const char* name) {
  if (tokens != wanted_tokens || top_k != static_cast<size_t>(wanted_top_k)) {
    throw InvalidArgument(cat(name, " is [", tokens, ", ", top_k, "], not [", wanted_tokens, ", ",
                              wanted_top_k, "]"));
  }
}

}  // namespace

RoutedTokens routed_tokens(const Array& x, const Array& ids, const Contiguous<float>& weights,
                           const OutArray& out, int top_k) {
  const RoutedTokens call{
      rows_of(x, "x"), rows_of(ids, "ids"), {weights.data(), weights.size()}, rows_of(out, "out")};
  check_picks(ids.shape(0), ids.shape(1), x.shape(0), top_k, "ids");
  check_picks(weights.shape(0), weights.shape(1), x.shape(0), top_k, "weights");
  return call;
}

WeightUse weight_use(bool weight_on_input, const std::string& left) {
  constexpr std::pair<const char*, Left> kNames[] = {
      {"weight_and_sum", Left::kWeightAndSum}, {"sum", Left::kSum}, {"nothing", Left::kNothing}};
  for (const auto& [known, value] : kNames) {
    if (left == known) return {.on_input = weight_on_input, .left = value};
  }
  throw InvalidArgument(
      cat("left \"", left, "\" is not known; there are weight_and_sum, sum, nothing"));
}

std::chrono::milliseconds checked_timeout(double seconds) {
  if (!(seconds > 0 && seconds < 1e6))
    throw InvalidArgument(cat("timeout must be in (0, 1e6) seconds, is ", seconds));
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000) + 1);
}

}  // namespace trimtab::python
