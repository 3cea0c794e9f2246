// SPDX-License-Identifier: Apache-2.0
#include "trimtab/router.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "bindings.h"
#include "trimtab/error.h"

namespace trimtab::python {
namespace {

using namespace nb::literals;

template <class Value, size_t n>
Value named(const std::pair<const char*, Value> (&names)[n], const char* what,
            const std::string& name) {
  std::string known;
  for (const auto& [text, value] : names) {
    if (name == text) return value;
    known += cat(known.empty() ? "" : ", ", text);
  }
  throw InvalidArgument(cat(what, " \"", name, "\" is not known; there are ", known));
}

constexpr std::pair<const char*, Scoring> kScorings[] = {{"softmax", Scoring::kSoftmax},
                                                         {"sigmoid", Scoring::kSigmoid},
                                                         {"sqrtsoftplus", Scoring::kSqrtSoftplus}};
constexpr std::pair<const char*, GroupScore> kGroupScores[] = {{"max", GroupScore::kMax},
                                                               {"top2_sum", GroupScore::kTop2Sum}};

std::shared_ptr<Router> make_router(int num_experts, int top_k, const std::string& scoring,
                                    bool renormalize, float routed_scaling_factor, int num_groups,
                                    int top_groups, const std::string& group_score,
                                    bool picks_in_every_group,
                                    const std::vector<float>& selection_bias,
                                    bool softmax_after_top_k, int num_appended_experts,
                                    bool force_balance, uint64_t force_balance_seed) {
  RouterConfig config;
  config.num_experts = num_experts;
  config.num_appended_experts = num_appended_experts;
  config.top_k = top_k;
  config.scoring = named(kScorings, "scoring", scoring);
  config.num_groups = num_groups;
  config.top_groups = top_groups;
  config.group_score = named(kGroupScores, "group_score", group_score);
  config.picks_in_every_group = picks_in_every_group;
  config.selection_bias = selection_bias;
  config.renormalize = renormalize;
  config.routed_scaling_factor = routed_scaling_factor;
  config.softmax_after_top_k = softmax_after_top_k;
  config.force_balance = force_balance;
  config.force_balance_seed = force_balance_seed;
  return std::make_shared<Router>(std::move(config));
}

template <class T>
using Matrix = nb::ndarray<nb::numpy, T, nb::ndim<2>>;

template <class T>
Matrix<T> owned(std::vector<T> values, size_t columns) {
  auto* const kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Matrix<T>(kept->data(), {kept->size() / columns, columns}, owner);
}

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Picks = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::tuple<Matrix<int32_t>, Matrix<float>> route(const Router& router, const Logits& logits,
                                                 const std::optional<Picks>& picks, int layer,
                                                 int64_t first_token, int threads) {
  if (threads < 1) throw InvalidArgument(cat("threads must be at least 1, is ", threads));
  const auto columns = static_cast<size_t>(router.picks_per_token());
  std::vector<int32_t> ids(logits.shape(0) * columns);
  std::vector<float> weights(ids.size());
  RouteInputs inputs{.layer = layer, .first_token = first_token};
  if (picks) inputs.picks = {picks->data(), picks->size()};
  const ConstRows rows(logits.data(), static_cast<int64_t>(logits.shape(0)),
                       static_cast<int64_t>(logits.shape(1)));
  {
    const nb::gil_scoped_release release;
    Team team(threads);
    router.route(rows, inputs, {ids, weights}, team);
  }
  return {owned(std::move(ids), columns), owned(std::move(weights), columns)};
}

}  // namespace

void bind_router(nb::module_& m) {
  nb::class_<Router>(m, "Router", R"(Logits to expert ids and weights, as model families do it.

Scores and weights are float32; equal scores go to the lower id. Immutable; threads may share it.)")
      .def(nb::new_(&make_router), "num_experts"_a, "top_k"_a, nb::kw_only(),
           "scoring"_a = "softmax", "renormalize"_a = true, "routed_scaling_factor"_a = 1.0F,
           "num_groups"_a = 1, "top_groups"_a = 1, "group_score"_a = "max",
           "picks_in_every_group"_a = false, "selection_bias"_a = std::vector<float>(),
           "softmax_after_top_k"_a = false, "num_appended_experts"_a = 0, "force_balance"_a = false,
           "force_balance_seed"_a = 0,
           R"(scoring: "softmax", "sigmoid" or "sqrtsoftplus".

renormalize: weights are divided by their sum. routed_scaling_factor: multiplies them, at the end.
num_groups, top_groups, group_score: only the best top_groups of num_groups equal groups stay, by
the largest score of a group ("max") or the sum of its two largest ("top2_sum").
picks_in_every_group: instead, each group gives its best top_k / num_groups experts (MoGE);
top_groups is num_groups.
selection_bias: [num_experts] added to the scores for the selection only, or empty.
softmax_after_top_k: selects by logits; the softmax is over the picks.
num_appended_experts: ids num_experts, num_experts + 1, ... behind each token's picks, weight 1.
force_balance: random experts for profile runs, by force_balance_seed; weights stay as they were.
ValueError for values and combinations that can't be.)")
      .def("route", &route, "logits"_a.noconvert(), "picks"_a.noconvert() = nb::none(),
           nb::kw_only(), "layer"_a = 0, "first_token"_a = 0, "threads"_a = 1,
           R"(Returns ids, int32, and weights, float32: [tokens, top_k + num_appended_experts].

A token's picks come best first. logits: float32 [tokens, num_experts].
picks: int32 [tokens, top_k], the ids of another run, which are to be replayed; -1 throughout a row:
the router picks. layer, first_token: what force_balance draws by.
ValueError for wrong shapes, a NaN and picks that are not there.)")
      .def_prop_ro("num_experts", [](const Router& router) { return router.config().num_experts; })
      .def_prop_ro("top_k", [](const Router& router) { return router.config().top_k; });
}

}  // namespace trimtab::python
