// SPDX-License-Identifier: Apache-2.0
// Moves experts from one placement to another, layer by layer, while the model serves. plan_moves()
// decides which slot each moved expert comes from; a Migrator is one rank's part in sending and
// receiving. A layer is staged first, in the background: its new experts come into spare blocks and
// are verified, and all ranks agree whether all of them are right. Only then may the layer be
// committed, between two steps and on every rank at the same one. Otherwise it is rolled back, and
// nothing has changed. Several layers may be staged, one after the other, as far as spares go.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trimtab/expert_slots.h"
#include "trimtab/placement.h"
#include "trimtab/policy.h"

namespace trimtab {

// The moves that take one layer from a placement to another: one for each slot whose expert
// changes, in order of slots, with from_slot decided. Where the rank holds the expert already, its
// own slot is the source, preferably one that gives the expert up. Otherwise the source is on a
// rank of the same node, if one holds the expert, and among those on the rank that sends least so
// far, ties to the lower rank; experts with few sources choose first. Deterministic. Throws
// InvalidArgument when the placements differ in size.
std::vector<Move> plan_moves(const Placement& from, const Placement& to, int layer,
                             const Topology& topology = {});

// The spares that each rank needs for these moves of one layer: [ranks]. A rank needs one for each
// expert that it receives, and one for each copy of an own expert whose block stays where it is.
// first_slots: [ranks + 1], Placement::first_slots().
std::vector<int> spares_needed(std::span<const Move> moves, std::span<const int32_t> first_slots);

enum class StageError {
  kNone,
  kDamaged,  // a message did not arrive as it was sent
  kFormat,   // this and the next three are as in MessageFault
  kShape,
  kInstructionSet,
  kExpert,
  kPlan,    // ranks were given different moves, or a slot does not hold what it should send
  kSpares,  // a rank has too few spares for its experts, or old Experts still use a spare
  kHook     // MigratorOptions::received threw
};

struct StageResult {
  bool ok = true;  // This and the next two are the same on every rank.
  StageError error = StageError::kNone;
  std::string reason;  // names the rank and the slot
  // The rest counts what this rank did.
  int64_t messages_sent = 0, messages_received = 0, local_copies = 0;
  int64_t bytes_sent = 0, bytes_received = 0;
  double seconds = 0;
};

struct MigratorOptions {
  // The most messages that a rank sends, and receives, at a time; at most
  // Communicator::kMaxInFlight.
  int max_in_flight = 2;
  // For tests: called with each message that this rank has received, before it is verified. It may
  // change the message, take its time, or throw, which fails the staging.
  std::function<void(const Move&, std::span<std::byte> message)> received = {};
};

// One rank's end of a migration. One background thread calls stage(); the thread that runs the
// layers calls commit() and rollback(). They must not run at the same time (the caller hands over,
// by a mutex or a join).
class Migrator {
 public:
  // Collective. slots: this rank's; they must outlive the Migrator. first_slots: the slots of all
  // ranks, as in Placement::first_slots(). comm: only stage() uses it (Communicator::duplicate()).
  // Throws InvalidArgument when they do not fit each other.
  Migrator(ExpertSlots& slots, std::span<const int32_t> first_slots,
           std::unique_ptr<Communicator> comm, const MigratorOptions& options = {});
  ~Migrator();
  Migrator(const Migrator&) = delete;
  Migrator& operator=(const Migrator&) = delete;

  // Brings the experts of one layer into spares that no other staged layer has. Collective; it
  // blocks until every rank is through. The layer may go on computing with the experts that are
  // sent. moves: the same on every rank, as plan_moves() makes them; may be empty. Throws CommError
  // when a peer fails, and InvalidArgument when the layer is staged already. Whatever else goes
  // wrong, on any rank, gives a result that is not ok on every rank, with nothing staged.
  StageResult stage(std::span<const Move> moves);
  // The layer that has been staged longest, or -1.
  int staged_layer() const;
  bool is_staged(int layer) const;
  // The staged experts become the layer's: ExpertSlots::experts(layer) gives them from now on.
  // Local and fast: no bytes move. Throws InvalidArgument when this layer is not staged.
  void commit(int layer);
  // Drops what is staged, of all layers or of one, if anything.
  void rollback();
  void rollback(int layer);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trimtab
