// SPDX-License-Identifier: Apache-2.0
// For the tests of dispatchers: a scene (tokens of all ranks, their picks, a placement), experts
// that are a known map of a row, one exchange over them, and what must come out, computed token by
// token in one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trimtab/communicator.h"
#include "trimtab/dispatcher.h"
#include "trimtab/split.h"

namespace trimtab {

enum class Placing { kLinear, kPermuted, kRedundant, kEverywhere, kFirstRankEmpty, kTwins };
// kTwins, whose replicas stand side by side, mostly on one rank, not among them.
constexpr Placing kPlacings[] = {Placing::kLinear, Placing::kPermuted, Placing::kRedundant,
                                 Placing::kEverywhere, Placing::kFirstRankEmpty};
enum class Routes { kUniform, kOneExpert, kMasked, kDuplicates };
constexpr Routes kRoutes[] = {Routes::kUniform, Routes::kOneExpert, Routes::kMasked,
                              Routes::kDuplicates};

struct Slots {
  std::vector<int32_t> first;    // [ranks + 1]
  std::vector<int32_t> logical;  // [slots]
};
Slots place(Placing placing, int ranks, int num_experts);

// Tokens are numbered over all ranks; rank r owns the next tokens[r] of them.
struct Scene {
  std::vector<int64_t> tokens;  // [ranks]
  int num_experts = 12;
  int hidden = 33;
  int top_k = 1;
  DType dtype = DType::kF32, results = DType::kF32;  // of rows and what comes back
  bool weight_on_input = false;
  Slots slots = {};

  std::vector<int32_t> ids = {};    // [all tokens, top_k] logical, or -1
  std::vector<float> weights = {};  // [all tokens, top_k]
  std::vector<float> x =
      {};  // [all tokens, hidden], exact in dtype (of quantised rows: what they stand for)
  // Of quantised rows: the rows and their scales as they travel.
  std::vector<std::byte> rows = {}, scales = {};

  // What share_out() fills in.
  std::shared_ptr<const SplitTable> table = {};
  SplitRule rule = SplitRule::kStatic;
  std::shared_ptr<const CostModel> cost = {};
  std::vector<int32_t> slot_ids = {};    // [all tokens, top_k]
  std::vector<int64_t> rank_loads = {};  // [ranks] rows that each receives

  int ranks() const { return static_cast<int>(tokens.size()); }
  int64_t all_tokens() const;
  int64_t first_token(int rank) const;
  // The slot that a pick goes to: replicas take turns, or as the dispatcher has to share out.
  int32_t slot_of_pick(int64_t token, int k) const;
  // What an expert sees of a token's element.
  float input(int64_t token, int64_t column, float weight) const;
};

// Fills ids, weights and x. Equal seeds and sizes give equal tokens, however they are spread over
// ranks.
void fill(Scene& scene, Routes routes, uint32_t seed);

// The dispatcher gets logical ids and shares them out by the rule. For a scene that is filled.
void share_out(Scene& scene, SplitRule rule);

// Sum over the picks of weight * expert(x), in double; and the sum of the magnitudes of all terms,
// for tolerances.
struct Expected {
  std::vector<double> out, magnitude;  // [all tokens, hidden]
};
Expected expect(const Scene& scene);

// What the experts may leave to this dispatcher, each in its turn.
Left left_of_turn(const Dispatcher& dispatcher, size_t turn);

// What a rank does with its rows: y = map of its slot's expert (times the row's weight but for
// kWeightAndSum).
void run_experts(const Scene& scene, int rank, const Tokens& tokens, Rows y, Left left);

// A dispatcher under test and the groups that it needs. The capacity of the shape counts for
// pull_batched only (0: room for every pick). Kinds: the names that make_dispatcher knows,
// packed_exact, and all_gather_levels (over the rows and columns of a grid of ranks).
class TestedDispatcher {
 public:
  TestedDispatcher(std::string_view kind, DispatchShape shape, Communicator& comm);
  const Dispatcher& operator*() const { return *dispatcher_; }
  const Dispatcher* operator->() const { return dispatcher_.get(); }
  std::span<Communicator* const> groups() const { return groups_; }
  std::unique_ptr<Dispatcher> take() { return std::move(dispatcher_); }

 private:
  std::vector<std::unique_ptr<Communicator>> owned_;
  std::vector<Communicator*> groups_;
  std::unique_ptr<Dispatcher> dispatcher_;
};
// All kinds that bring each token's whole sum back to it.
constexpr const char* kKinds[] = {"pull",       "pull_batched", "fused",  "all_to_all",
                                  "mc2",        "packed_exact", "packed", "all_gather_levels",
                                  "all_gather", "hybrid"};
constexpr const char* kExactKinds[] = {"pull",       "pull_batched", "fused",
                                       "all_to_all", "mc2",          "packed_exact"};
bool is_exact(std::string_view kind);
// Those that share picks out over replicas.
constexpr const char* kSharingKinds[] = {"pull",         "pull_batched", "fused", "all_to_all",
                                         "packed_exact", "packed",       "hybrid"};
constexpr SplitRule kSplitRules[] = {SplitRule::kStatic, SplitRule::kRoundRobin, SplitRule::kSplit,
                                     SplitRule::kTime};

// run_group, on the hosts that the kind wants.
void run_scene_ranks(std::string_view kind, int ranks,
                     const std::function<void(Communicator&)>& body, GroupOptions options = {});
// After it, where ranks are processes: brings the rows of all ranks, [all tokens, hidden], to all.
void bring_together(const Scene& scene, std::vector<float>& out);

// One rank's call in flight, with memory of its own for what a caller owns; x has gaps between its
// rows on odd ranks.
class RankCall {
 public:
  // owner: whose tokens of the scene the rank has, if not its own.
  RankCall(const Scene& scene, const Dispatcher& dispatcher, Lane& lane, int owner = -1);

  Exchange& exchange() { return *exchange_; }
  void compute(Left left);  // experts and send_back
  // Writes this rank's tokens into all_out [all tokens, hidden].
  void finish(std::span<float> all_out);

 private:
  const Scene& scene_;
  Communicator& comm_;
  const int owner_;
  std::vector<std::byte> x_, scales_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_, out_;
  Buffer y_, sums_;
  ExchangePtr exchange_;
};

// All stages of one exchange, blocking. Returns its rounds.
int64_t exchange_once(const Scene& scene, const Dispatcher& dispatcher, Lane& lane, Left left,
                      std::span<float> all_out, int owner = -1);

// capacity: the most rows of one expert, for kinds that need it.
DispatchShape shape_of(const Scene& scene, int64_t max_tokens, int top_k, int64_t capacity = 0);
int64_t most_rows_of_a_slot(const Scene& scene);

// Fills the free part of a workspace with NaN, so that what was never written shows.
void poison(Workspace& workspace);

// Is every element within the rounding of f32 sums? The first that is not, in words; else "".
// Rounding: y = a x + b and weight * y are 3 roundings, a sum of n terms n - 1 more, each at most
// 2^-24 of the sum of the magnitudes. `additions` is that n.
std::string difference(const Scene& scene, const Expected& expected, std::span<const float> out,
                       int additions);

}  // namespace trimtab
