// SPDX-License-Identifier: Apache-2.0
// From one placement to another, layer by layer, while the model serves: which rank sends which
// expert to whom, and one rank's part in sending them. A layer is staged first, in the background:
// its new experts come into spare blocks and are verified, and all ranks agree whether all of them
// are right. Only then may it be committed, between two steps and on every rank at the same one;
// else it is rolled back, and nothing has happened.
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

// One expert's weights to one slot, from one that holds it. Slots of all ranks, as in Placement.
struct Transfer {
  int32_t layer = 0;
  int32_t slot = 0;
  int32_t expert = 0;
  int32_t from_slot = 0;
  bool operator==(const Transfer&) const = default;
};

// What has to move in a layer: one Transfer for each slot whose expert changes, by slot. Where the
// rank holds the expert already, it is the source, with a slot that gives it up if there is one.
// Else a rank of the same node is, if any holds the expert, and of those the one that sends least
// so far, ties to the lower rank; experts with few sources choose first. Deterministic. Throws
// InvalidArgument when the placements differ in size.
std::vector<Transfer> plan_transfers(const Placement& from, const Placement& to, int layer,
                                     const Topology& topology = {});

// The most spares that a rank needs for these transfers of one layer: [ranks]. Experts that it
// receives, and copies of its own that stay where they are too.
std::vector<int> spares_needed(std::span<const Transfer> transfers,
                               std::span<const int32_t> first_slots);

enum class StageError {
  kNone,
  kDamaged,  // a message did not arrive as it was sent
  kFormat,   // this and the next three as MessageFault
  kShape,
  kInstructionSet,
  kExpert,
  kPlan,    // ranks were given different transfers, or a slot does not hold what it should send
  kSpares,  // more experts for a rank than it has spares, or a spare that old Experts still use
  kHook     // MigratorOptions::received threw
};

struct StageResult {
  bool ok = true;  // this and the next two are the same on every rank
  StageError error = StageError::kNone;
  std::string reason;  // names the rank and the slot
  // Of this rank.
  int64_t messages_sent = 0, messages_received = 0, local_copies = 0;
  int64_t bytes_sent = 0, bytes_received = 0;
  double seconds = 0;
};

struct MigratorOptions {
  // Messages that a rank has under way at a time, each way; at most Communicator::kMaxInFlight.
  int max_in_flight = 2;
  // For tests: sees each message of this rank after it has come and before it is verified. It may
  // change it, take its time, or throw, which fails the staging.
  std::function<void(const Transfer&, std::span<std::byte> message)> received = {};
};

// One rank's end. stage() is for one background thread, commit() and rollback() for whoever runs
// the layers; they must not run at the same time (the caller hands over, by a mutex or a join).
class Migrator {
 public:
  // first_slots: [ranks + 1], of the placements. slots: this rank's; outlives the Migrator. comm:
  // used by stage() alone (Communicator::duplicate()). Collective. Throws InvalidArgument when
  // things do not fit.
  Migrator(ExpertSlots& slots, std::span<const int32_t> first_slots,
           std::unique_ptr<Communicator> comm, const MigratorOptions& options = {});
  ~Migrator();
  Migrator(const Migrator&) = delete;
  Migrator& operator=(const Migrator&) = delete;

  // Brings the experts of one layer into spares. Collective, and blocks until every rank is
  // through; a rank that sends goes on computing with what it sends. transfers: the same on every
  // rank, as plan_transfers() makes them; may be empty. Throws CommError when a peer fails, and
  // InvalidArgument when a layer is staged already. Whatever goes wrong otherwise, on any rank, is
  // a result that is not ok on every rank, with nothing staged.
  StageResult stage(std::span<const Transfer> transfers);
  // The layer that is staged, or -1.
  int staged_layer() const;
  // The staged experts become the layer's: ExpertSlots::experts(layer) gives them from now on.
  // Local and fast: no bytes move. Throws InvalidArgument when this layer is not staged.
  void commit(int layer);
  // Drops what is staged, if anything.
  void rollback();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trimtab
