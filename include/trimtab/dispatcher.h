// SPDX-License-Identifier: Apache-2.0
// A dispatcher takes tokens to the ranks that hold their experts, and brings the results back. It
// is stateless between calls: all that belongs to one call lives in the Exchange it returns, inside
// the call's Lane, so layers share lanes and two microbatches can be in flight. The ids it is given
// are physical experts (slots); or, where it shares picks out over replicas, logical experts and
// the replicas of each.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "trimtab/communicator.h"
#include "trimtab/dispatcher_kind.h"
#include "trimtab/split.h"
#include "trimtab/team.h"
#include "trimtab/tensor.h"
#include "trimtab/trace.h"
#include "trimtab/workspace.h"

namespace trimtab {

// The work that the experts leave to the combine for the rows they return.
enum class Left {
  kWeightAndSum,  // multiply by the router weight and sum over a token's picks
  kSum,           // weights are already in
  kNothing,       // already one row per token: the weighted sum of its picks here, as TokenPicks
};

// Says how the picks of logical experts are shared out over the replicas of each. It must be equal
// on every rank.
struct Replicas {
  const SplitTable* table = nullptr;
  SplitRule rule = SplitRule::kSplit;
  const CostModel* cost = nullptr;  // for the rule kTime
};

// The inputs of one dispatch. All memory stays the caller's and unchanged until Stage::kDrained.
// Ranks may have different numbers of tokens, 0 included. What must be the same on every rank is
// compared: the DispatchShape, top_k, weight_on_input, the replicas, their rule and its cost model,
// and placement. Where ranks differ each of them gets an InvalidArgument at Stage::kArrived, with
// the values and one rank that has others, and the group goes on (`grouped`, whose ranks exchange
// nothing, can't notice).
struct Request {
  ConstRows x;                   // [tokens, hidden], the dtype of the DispatchShape
  std::span<const int32_t> ids;  // [tokens, top_k] physical experts (logical ones with `replicas`);
                                 // -1: nobody (padding, zero expert). An expert that stands twice
                                 // in a row is computed and added twice.
  std::span<const float> weights;  // [tokens, top_k]
  int top_k = 0;                   // at most that of the DispatchShape
  // Multiply the row by its weight before the experts instead of after (top_k == 1 only): in f32,
  // rounded to the dtype of the row. Tokens::weights and the combine then use 1.
  bool weight_on_input = false;
  // The scales of quantised rows; no rows for other rows. dtype I8: F32 [tokens, 1]; dtype F8_E4M3:
  // F8_E8M0 [tokens, hidden / 32]. They travel with their rows. weight_on_input multiplies the
  // scale of an I8 row; F8_E4M3 rows can't be weighed so.
  ConstRows scales = {};
  // With a table: ids are its logical experts, and the dispatcher, which must share out, sends each
  // pick to a replica. It uses the counts of all ranks, which it exchanges anyway; every rank comes
  // to the same shares by split_tokens(). Inside an expert the first picks of a rank go to the
  // first slot, as assign_slots() does. If the replicas of an expert have the same weights, a
  // dispatcher that adds in the order of the ids gives the same bits for every rule; others keep
  // within their bound.
  Replicas replicas = {};
  // A number by which ranks notice that their ids come from different placements, such as
  // SplitTable::fingerprint; 0 where there is none.
  uint64_t placement = 0;
};

// The addresses of the rows of kIndirect, and of their scales if they have any: [rows].
struct RowPointers {
  std::span<const std::byte* const> x, scales;
};

// Where the picks of each token stand among a rank's rows, for experts that sum them.
struct TokenPicks {
  // [tokens, top_k] the row of each pick; -1: nobody's, or another rank's
  std::span<const int32_t> rows;
  int top_k = 0;  // 0: the dispatcher does not bring whole tokens

  int64_t tokens() const { return top_k == 0 ? 0 : std::ssize(rows) / top_k; }
};

// Experts work on at most so many rows at once, in their order (Experts::run()).
constexpr int64_t kRowsAtOnce = 8192;

// The rows that a rank's experts work on. They are views into the exchange: counts and picks are
// valid from kArrived to the end of the exchange, all else to send_back().
struct Tokens {
  Format format = Format::kStandard;
  // The rows, laid out as the format says, in the dtype of the request. Inside an expert they stand
  // by source rank, then by token and pick of that rank (hybrid: first by the rank of the host that
  // took the tokens; all_gather in levels: as they were gathered).
  ConstRows x;
  // [x.rows] the router weight of each row, if the dispatcher carries them; else empty
  std::span<const float> weights;
  std::span<const int32_t> counts;  // [local experts] rows of each; counts, never running sums
  int64_t capacity = 0;             // kBatched: rows reserved per expert
  ConstRows scales = {};            // the scales of quantised rows, row by row as x; else no rows
  // kIndirect: x and scales say what the rows are, but have no memory; this says where they are.
  // They may be memory of peers: under a Reading of the board, if there is one, they can be read up
  // to send_back().
  RowPointers at = {};
  Board* board = nullptr;
  TokenPicks picks = {};  // of dispatchers that bring whole tokens
  // Memory of the exchange for what the experts make of the rows: f32, as x, readable by peers
  // where they have to read it. It overlaps x, so only experts with overwrites_rows() may use it:
  // its row i ends before row i + 1 - kRowsAtOnce of x begins, or before the first one.
  Rows y = {};

  // One row, or its scales, in any format.
  ConstRows row(int64_t i) const { return one_row(x, at.x, i); }
  ConstRows row_scales(int64_t i) const { return one_row(scales, at.scales, i); }

 private:
  static ConstRows one_row(const ConstRows& all, std::span<const std::byte* const> at, int64_t i) {
    if (at.empty()) return all.slice(i, 1);
    return {at[i], 1, all.cols, all.cols, all.dtype};
  }
};

// The things that one call in flight owns on one rank: an order of operations among the ranks,
// memory, and the rank's threads. Each microbatch has a lane, which all layers share. One call and
// one exchange at a time are in flight in it; a second one throws InvalidArgument. Lanes that are
// in use at the same time have each a Communicator and a Workspace of its own; threads may be
// shared where one thread drives both.
struct Lane {
  Communicator& comm;
  Workspace& workspace;
  Team& team;
  // Groups split from comm that some dispatchers need, see Dispatcher::make_groups().
  std::span<Communicator* const> groups = {};
  // The trace of the thread that makes the calls, shared by all its lanes. Layers record what they
  // do, exchanges how long the thread is blocked and how long it sorts rows. Null: nothing is
  // recorded.
  TraceBuffer* trace = nullptr;
  // Say what is in flight here; the call and the exchange set and clear them.
  bool has_call = false, has_exchange = false;
};

// Returns the groups in the form that a Lane wants.
std::vector<Communicator*> pointers_to(std::span<const std::unique_ptr<Communicator>> groups);

// The points where a call may have to wait for its peers, in order.
enum class Stage {
  kArrived,   // tokens() may be read
  kReturned,  // finish() may be called
  kDrained,   // peers are through with this rank's memory: x, the experts' output and the exchange
              // may go
};

// One dispatch and its combine. Call: [poll/wait kArrived] tokens, send_back, [poll/wait kReturned]
// finish, [poll/wait kDrained]. Every rank goes through all of it, also with no tokens to send or
// to compute. Calls out of this order are an InvalidArgument. With a row budget there may be more
// than one round of it, as many on every rank: see more().
// The lane and the dispatcher must
// outlive the exchange. An exchange that is destroyed before kDrained (an exception passes) aborts
// the group first, so that no peer reads memory that is going away; therefore x, y and the
// workspace should outlive the exchange also then.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Is the stage reached? Never waits for a peer; the first call that finds kArrived reached copies
  // the rows into expert order with the lane's team. Throws CommError when the group has failed.
  virtual bool poll(Stage stage) = 0;
  // Blocks until poll(stage). Throws CommError.
  virtual void wait(Stage stage) = 0;

  virtual const Tokens& tokens() const = 0;
  // y: f32 rows as tokens().x, what the experts made of them, or with Left::kNothing one for each
  // token of tokens().picks. It is tokens().y, which the dispatcher may then change, or other
  // memory that stays valid and unchanged until kDrained; with a dispatcher that uses the board
  // peers must be able to read it (Communicator::allocate), as they can the lane's workspace.
  // Throws InvalidArgument for a wrong shape, and for a Left that the dispatcher does not know what
  // to do with.
  virtual void send_back(ConstRows y, Left left) = 0;
  // For dispatchers that sum parts (Dispatcher::sums_parts), once between kArrived and kReturned: a
  // further part of every token that this rank has computed, f32 [tokens, hidden] of the request.
  // It goes into the output's sum; or, if it stays apart, finish() overwrites it with the sum of
  // what all ranks have brought. Every rank must do the same. It stays valid until kDrained. Throws
  // InvalidArgument for other dispatchers and wrong shapes.
  virtual void add_part(Rows part, bool apart);
  // out: f32 [tokens, hidden] of the request, overwritten. A token whose ids are all -1 gets zeros.
  // Of several rounds each writes the rows of its own tokens.
  virtual void finish(Rows out) = 0;
  // From kArrived to kDrained: does another round follow? Then all goes on from kArrived, with the
  // same out. Between the two, what the lane's workspace has given since before the first kArrived
  // can be given back; where memory is reserved for one round it must be.
  virtual bool more() const { return false; }
};

// Exchanges live in the lane's workspace; only the destructor runs when the pointer goes.
struct DestroyExchange {
  void operator()(Exchange* exchange) const { exchange->~Exchange(); }
};
using ExchangePtr = std::unique_ptr<Exchange, DestroyExchange>;

// The sizes a dispatcher is built for; the same on every rank. The maker copies them, and throws
// InvalidArgument for impossible ones.
struct DispatchShape {
  int64_t max_tokens = 0;  // most tokens of one rank in one call
  int hidden = 0;
  int top_k = 0;
  // The type of the rows that travel: F32, BF16, I8 or F8_E4M3 (the last two with scales).
  DType dtype = DType::kF32;
  // [ranks + 1]: rank r holds the slots [first_slots[r], first_slots[r + 1]).
  std::span<const int32_t> first_slots;
  // Format::kBatched only: most rows of one expert in a call, >= 1; else 0.
  int64_t capacity = 0;
  // The output's bits must not depend on the number of ranks or the placement: a token's picks are
  // added in the order of its ids. A dispatcher that can't promise it throws InvalidArgument.
  bool exact_order = false;
  // Logical experts in the slots, where requests come with Request::replicas; else 0. Memory is
  // reserved to share picks out under any placement of so many. A dispatcher that can't share out
  // throws InvalidArgument.
  int num_experts = 0;
  // The most rows that a rank's experts get at once; 0: every pick of every rank. Memory is
  // reserved for so many. When a batch brings a rank more, all ranks cut it alike into rounds of
  // their tokens that fit (Exchange::more()); the output has the same bits. At least ranks * top_k,
  // which one token of each rank may bring. A dispatcher that can't do it throws InvalidArgument.
  int64_t row_budget = 0;
  // The type in which the experts' results travel back: F32, or to send fewer bytes BF16, I8 or
  // F8_E4M3 (the last two with scales that the dispatcher makes). They are rounded to it once and
  // added in f32. A dispatcher that sends no results (DispatcherKind::sends_results) takes F32 only
  // and throws InvalidArgument for others.
  DType results = DType::kF32;
};

// The row budget of `over_level` times the rows that each rank gets when all ranks come with
// max_tokens and loads are level; at least what a budget must be. 0: no budget. Throws
// InvalidArgument for a number below 0 or none.
int64_t row_budget_of(const DispatchShape& shape, double over_level);
// What is enough for loads that are nearly level.
constexpr double kRowBudget = 1.5;

class Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  virtual const DispatcherKind& kind() const = 0;
  std::string_view name() const { return kind().name; }
  Format format() const { return kind().format; }
  // Can experts apply the weights (Left::kSum), because rows arrive with them?
  bool carries_weights() const { return kind().carries_weights; }
  // Is finish()'s output complete, or a part that the caller must still sum over the ranks?
  bool output_is_reduced() const { return kind().output_is_reduced; }
  // Does every rank bring parts of the same tokens, so that it may bring more (Exchange::add_part)?
  virtual bool sums_parts() const { return false; }
  // The shape that the dispatcher was made for. first_slots is a view of its own copy.
  virtual DispatchShape shape() const = 0;
  virtual int rank() const = 0;
  // May requests come with replicas?
  bool shares_out() const { return shape().num_experts > 0; }
  // The groups that a lane over comm needs, in the order of Lane::groups; none for most.
  // Collective: every rank of comm calls it, once for each of its lanes.
  virtual std::vector<std::unique_ptr<Communicator>> make_groups(Communicator& comm) const;
  // Most rows of Tokens::x at once (kStandard: the row budget, or every pick of every rank, as an
  // expert may stand in a row more than once), and the workspace bytes every exchange takes,
  // Tokens::y included.
  virtual int64_t max_rows() const = 0;
  virtual size_t workspace_bytes() const = 0;
  // Starts the exchange. Throws InvalidArgument for wrong shapes, ids out of range, more than
  // max_tokens, or a lane that does not fit: another rank or size, a workspace that is too short.
  // Nothing has happened then. Any number of lanes may dispatch at the same time.
  virtual ExchangePtr dispatch(const Request& request, Lane& lane) const = 0;
};

// All take Left::kWeightAndSum and Left::kSum; those that bring whole tokens take Left::kNothing
// too, unless they keep exact order. What else each can do: dispatcher_kind.h.
//
// `pull`: ranks share memory. Each posts its picks sorted by expert; the owners read the rows from
// there straight into expert order, and the sources read the results back in place. Keeps exact
// order. dispatch() throws InvalidArgument when the lane's Communicator has no board.
std::unique_ptr<Dispatcher> make_pull_dispatcher(const DispatchShape& shape, int rank);

// `pull_batched`: as `pull`, in Format::kBatched. When an expert gets more rows than the shape's
// capacity, every rank gets the same InvalidArgument at Stage::kArrived, with that expert and its
// rows, and the group goes on.
std::unique_ptr<Dispatcher> make_pull_batched_dispatcher(const DispatchShape& shape, int rank);

// `fused`: as `pull`, in Format::kIndirect: owners copy nothing, their experts read the rows from
// the sources' memory as they need them, expert by expert. Wants experts that take that format.
std::unique_ptr<Dispatcher> make_fused_dispatcher(const DispatchShape& shape, int rank);

// `all_gather`: every rank gets every token, computes its own experts' part, and the parts are
// summed back to the owners. Uses collectives only. The sum over ranks changes the order of
// additions: with top_k picks the result is within top_k * 2^-23 * sum of |weight * y| of pull's,
// not equal bit by bit; it depends on the placement, not on timing. levels: none, or the sizes of
// groups whose product is the number of ranks (say, of data-parallel ranks, then of
// context-parallel ones): tokens are gathered over the lane's groups[0], what that gave over
// groups[1] and so on, and the sums are scattered back in reverse order. groups[0] are the ranks
// that stand side by side.
std::unique_ptr<Dispatcher> make_all_gather_dispatcher(const DispatchShape& shape, int rank,
                                                       std::span<const int> levels = {});

// `all_to_all`: each pick's row goes to the rank of its expert and its result comes back, both in
// one exchange of blocks between all pairs of ranks; counts are gathered. Dropless. Keeps exact
// order. Collectives only.
std::unique_ptr<Dispatcher> make_all_to_all_dispatcher(const DispatchShape& shape, int rank);

// `mc2`: as `all_to_all`, with the counts at the head of the blocks: one exchange less, for small
// batches. max_tokens is the capacity of a rank; padding is id -1. Keeps exact order.
std::unique_ptr<Dispatcher> make_mc2_dispatcher(const DispatchShape& shape, int rank);

// `packed`: for ranks that are far from each other. A token goes once to each rank that has any of
// its picks, with the list of them; the rows are made there, and one row, the sum of that rank's
// weighted picks, comes back. Sums as all_gather does. With exact_order one row a pick comes back
// instead. Collectives only.
std::unique_ptr<Dispatcher> make_packed_dispatcher(const DispatchShape& shape, int rank);

// `hybrid`: `packed` between hosts, `pull` inside. A token goes once to each host that has any of
// its picks, to one rank there, from which that host's ranks pull it. Sums over hosts as all_gather
// does over ranks. The lane's groups[0] is the group of this rank's host. hosts: [ranks] as
// Communicator::hosts().
std::unique_ptr<Dispatcher> make_hybrid_dispatcher(const DispatchShape& shape,
                                                   std::span<const int32_t> hosts, int rank);

// `grouped`: every rank has the same tokens and computes the picks that are its own, no token
// moves. The output is this rank's part: output_is_reduced() is false, and the sum over the ranks
// is the caller's.
std::unique_ptr<Dispatcher> make_grouped_dispatcher(const DispatchShape& shape, int rank);

// This one is for tensor-parallel ranks, which all have the same tokens. Each rank dispatches only
// its slice of them with `inner`, and the outputs are gathered, so that every rank has all. The
// slices are as even as possible; some may be empty. The lane's groups.back() is the
// tensor-parallel group; the other groups are inner's. max_tokens counts the whole batch; inner
// must be made for a slice of it, (max_tokens + ranks of the group - 1) / ranks of the group. The
// group has at most most_slices ranks; 0: no more than inner has. make_groups() makes those of
// inner.
std::unique_ptr<Dispatcher> make_sliced_dispatcher(std::unique_ptr<Dispatcher> inner,
                                                   int64_t max_tokens, int most_slices = 0);

// Makes a dispatcher by its name, for configuration: any kind of dispatcher_kinds(). hosts:
// [ranks], for the kinds that need them. Throws InvalidArgument with the list of names.
std::unique_ptr<Dispatcher> make_dispatcher(std::string_view name, const DispatchShape& shape,
                                            int rank, std::span<const int32_t> hosts = {});

}  // namespace trimtab
