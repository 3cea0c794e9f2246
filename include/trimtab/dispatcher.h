// SPDX-License-Identifier: Apache-2.0
// Taking tokens to the ranks that hold their experts, and the results back. A Dispatcher is stateless between calls:
// all that belongs to one call lives in the Exchange it returns, inside the call's Lane, so layers share lanes and two
// microbatches can be in flight. Only physical expert ids (slots) reach a dispatcher.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "trimtab/communicator.h"
#include "trimtab/team.h"
#include "trimtab/tensor.h"
#include "trimtab/workspace.h"

namespace trimtab {

// How rows for the experts are laid out: kStandard, rows sorted by local expert, [sum of counts, hidden]; kBatched,
// [local experts, capacity, hidden].
enum class Format { kStandard, kBatched };

// What the experts leave for the combine to do with the rows they return.
enum class Left {
  kWeightAndSum,  // multiply by the router weight and sum over a token's picks
  kSum,           // weights are already in
  kNothing,       // already one row per token
};

// The inputs of one dispatch. All memory stays the caller's and unchanged until Stage::kDrained. Ranks may have
// different numbers of tokens, 0 included; top_k and weight_on_input are the same on every rank.
struct Request {
  ConstRows x;                     // [tokens, hidden], the dtype of the DispatchShape
  std::span<const int32_t> ids;    // [tokens, top_k] physical experts; -1: nobody (padding, zero expert). An expert
                                   // that stands twice in a row is computed and added twice.
  std::span<const float> weights;  // [tokens, top_k]
  int top_k = 0;                   // at most that of the DispatchShape
  // Multiply the row by its weight before the experts instead of after (top_k == 1 only): in f32, rounded to the dtype
  // of the row. Tokens::weights and the combine then use 1.
  bool weight_on_input = false;
};

// What a rank's experts have to work on. Views into the exchange: valid from kArrived to the end of the exchange.
struct Tokens {
  Format format = Format::kStandard;
  ConstRows x;                      // by format; the dtype of the request. Inside an expert: by source rank, then by
                                    // token and pick of that rank.
  std::span<const float> weights;   // [x.rows] router weight of each row, if the dispatcher carries them; else empty
  std::span<const int32_t> counts;  // [local experts] rows of each; counts, never running sums
  int64_t capacity = 0;             // kBatched: rows reserved per expert
};

// What one call in flight owns on one rank: an order of operations among the ranks, memory, and the rank's threads.
// One lane per microbatch, shared by all layers; one exchange at a time is in flight in it.
struct Lane {
  Communicator& comm;
  Workspace& workspace;
  Team& team;
};

// The points where a call may have to wait for its peers, in order.
enum class Stage {
  kArrived,   // tokens() may be read
  kReturned,  // finish() may be called
  kDrained,   // peers are through with this rank's memory: x, the experts' output and the exchange may go
};

// One dispatch and its combine. Call: [poll/wait kArrived] tokens, send_back, [poll/wait kReturned] finish,
// [poll/wait kDrained]. Every rank goes through all of it, also with no tokens to send or to compute. Calls out of this
// order are an InvalidArgument. The lane and the dispatcher must outlive the exchange. An exchange that is destroyed
// before kDrained (an exception passes) aborts the group first, so that no peer reads memory that is going away;
// therefore x, y and the workspace should outlive the exchange also then.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Is the stage reached? Never waits for a peer; the first call that finds kArrived reached copies the rows into
  // expert order with the lane's team. Throws CommError when the group has failed.
  virtual bool poll(Stage stage) = 0;
  // Blocks until poll(stage). Throws CommError.
  virtual void wait(Stage stage) = 0;

  virtual const Tokens& tokens() const = 0;
  // y: f32 rows as tokens().x, what the experts made of them; stays valid and unchanged until kDrained. With a
  // dispatcher that uses the board it must be memory that peers can read (Communicator::allocate), such as the lane's
  // workspace. Throws InvalidArgument for a wrong shape, and for a Left that the dispatcher does not know what to do
  // with.
  virtual void send_back(ConstRows y, Left left) = 0;
  // out: f32 [tokens, hidden] of the request, overwritten. A token whose ids are all -1 gets zeros.
  virtual void finish(Rows out) = 0;
};

// Exchanges live in the lane's workspace; only the destructor runs when the pointer goes.
struct DestroyExchange {
  void operator()(Exchange* exchange) const { exchange->~Exchange(); }
};
using ExchangePtr = std::unique_ptr<Exchange, DestroyExchange>;

// The sizes a dispatcher is built for; the same on every rank. The maker copies them, and throws InvalidArgument for
// impossible ones.
struct DispatchShape {
  int64_t max_tokens = 0;  // most tokens of one rank in one call
  int hidden = 0;
  int top_k = 0;
  DType dtype = DType::kF32;  // of the rows that travel
  // [ranks + 1]: rank r holds the slots [first_slots[r], first_slots[r + 1]).
  std::span<const int32_t> first_slots;
};

class Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  virtual std::string_view name() const = 0;
  virtual Format format() const = 0;
  // What it was made for. first_slots is a view of its own copy.
  virtual DispatchShape shape() const = 0;
  virtual int rank() const = 0;
  // Can experts apply the weights (Left::kSum), because rows arrive with them?
  virtual bool carries_weights() const = 0;
  // Is finish()'s output complete, or a part that the caller must still sum over the tensor-parallel ranks?
  virtual bool output_is_reduced() const = 0;
  // Most rows this rank's experts can get in one call (every pick of every rank: an expert may stand in a row more than
  // once), and the workspace bytes every exchange takes, experts' output not included.
  virtual int64_t max_rows() const = 0;
  virtual size_t workspace_bytes() const = 0;
  // Starts the exchange. Throws InvalidArgument for wrong shapes, ids out of range, more than max_tokens, or a lane
  // that does not fit: another rank or size, a workspace that is too short. Nothing has happened then. Any number of
  // lanes may dispatch at the same time.
  virtual ExchangePtr dispatch(const Request& request, Lane& lane) const = 0;
};

// `pull`: ranks share memory. Each posts its picks sorted by expert; the owners read the rows from there straight into
// expert order, and the sources read the results back in place. Output bits do not depend on the number of ranks or the
// placement: a token's picks are summed in the order of its ids, in f32. Takes Left::kWeightAndSum and Left::kSum.
// dispatch() throws InvalidArgument when the lane's Communicator has no board.
std::unique_ptr<Dispatcher> make_pull_dispatcher(const DispatchShape& shape, int rank);

// `all_gather`: every rank gets every token, computes its own experts' part, and the parts are summed back to the
// owners. Uses collectives only, four a call. The sum over ranks changes the order of additions: with top_k picks the
// result is within top_k * 2^-23 * sum of |weight * y| of pull's, not equal bit by bit; it depends on the placement,
// not on timing. Takes Left::kWeightAndSum and Left::kSum.
std::unique_ptr<Dispatcher> make_all_gather_dispatcher(const DispatchShape& shape, int rank);

// By name, for configuration. Throws InvalidArgument with the list of names.
std::unique_ptr<Dispatcher> make_dispatcher(std::string_view name, const DispatchShape& shape, int rank);

}  // namespace trimtab
