// SPDX-License-Identifier: Apache-2.0
// One rank's experts of all MoE layers, in memory that is taken once and can be given other experts
// while the model serves. Each slot owns its memory alone: an expert there is one block, a header
// and then all its weights, scales, zero points and biases, which is also the message that takes it
// to another rank. Beside the slots there are spares, blocks of the same size, into which the next
// experts of a layer are brought while the old ones go on working; rearrange() then changes blocks,
// not bytes, so that what a layer gives up becomes the spares for the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trimtab/communicator.h"
#include "trimtab/experts.h"

namespace trimtab {

// Why a block is not the expert that was expected.
enum class MessageFault {
  kNone,
  kDamaged,         // header or contents are not what was sent: a checksum or a size is wrong
  kFormat,          // in another weight format, or with other parts (biases, zero points)
  kShape,           // of another shape or activation
  kInstructionSet,  // packed for the kernels of another instruction set
  kExpert           // of another layer or another expert
};

// Not thread-safe, but for these: message() and experts() may be called, and the Experts run, while
// another thread fills spares.
class ExpertSlots {
 public:
  // What a slot of this rank (counted from 0) begins with. Called once for each; the weights are
  // copied and may go.
  struct Expert {
    std::shared_ptr<const Mlp> weights;
    int32_t logical = 0;
  };
  using Source = std::function<Expert(int layer, int slot)>;
  // Collective, since all ranks must have experts of one kind: throws InvalidArgument, on every
  // rank, where formats, shapes, activations, biases or instruction sets differ, or where no rank
  // has a slot. A rank may have no slots, and then needs no spares. Zero points are kept for all
  // experts where the first of any rank has them.
  ExpertSlots(int num_layers, int num_slots, int num_spares, const Source& source,
              Communicator& comm);
  ~ExpertSlots();
  ExpertSlots(const ExpertSlots&) = delete;
  ExpertSlots& operator=(const ExpertSlots&) = delete;

  int num_layers() const;
  int num_slots() const;  // of this rank, in each layer
  int num_spares() const;
  // Of one expert as a message, which is what a spare takes.
  size_t expert_bytes() const;
  size_t staging_bytes() const { return static_cast<size_t>(num_spares()) * expert_bytes(); }
  size_t bytes() const;  // of all blocks

  // A layer's experts as they are now, for MoeLayer. They stay the layer's until its next
  // rearrange(); then the bytes of those that it gives up are overwritten at the next staging, so
  // whoever has them must have let go by then.
  std::shared_ptr<const Experts> experts(int layer, Format format = Format::kStandard) const;
  int32_t logical(int layer, int slot) const;

  // The expert in a slot as a message, [expert_bytes()].
  std::span<const std::byte> message(int layer, int slot) const;
  // A spare to receive into, [expert_bytes()].
  std::span<std::byte> spare(int spare);
  // Is some Experts of before the last rearrange() still there that works with this spare's memory?
  bool in_use(int spare) const;
  // Is in the spare what it should be? Reads it all. text, if there is a fault, says what and
  // where.
  struct Finding {
    MessageFault fault = MessageFault::kNone;
    std::string text;
  };
  Finding check_spare(int spare, int layer, int32_t logical) const;

  // One slot's next block: that of another slot, which gives it up, or a spare.
  struct Change {
    int slot = 0;
    int from_slot = -1;
    int from_spare = -1;
  };
  // Puts blocks into the slots of a layer, all at once; what is given up becomes the spares. Each
  // block may be named once, and from_slots must be among the slots that change. Throws
  // InvalidArgument before anything has changed.
  void rearrange(int layer, std::span<const Change> changes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trimtab
