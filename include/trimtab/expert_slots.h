// SPDX-License-Identifier: Apache-2.0
// One rank's experts of all MoE layers, in memory that is taken once and can be given other experts
// while the model serves. Each slot has one block of memory: a header, then all weights, scales,
// zero points and biases of the expert that it holds. The same block is the message that takes the
// expert to another rank. Beside the slots there are spares, which are blocks of the same size. The
// next experts of a layer come into the spares while the old ones go on working. rearrange() then
// exchanges blocks and copies no bytes: the blocks that a layer gives up are the spares for the
// next layer.
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
  kFormat,          // another weight format, or other parts (biases, zero points)
  kShape,           // another shape or activation
  kInstructionSet,  // packed for the kernels of another instruction set
  kExpert           // an expert of another layer, or another expert
};

// Not thread-safe, but for these: message() and experts() may be called, and the Experts run, while
// another thread fills spares.
class ExpertSlots {
 public:
  // The expert that a slot of this rank (counted from 0) begins with. A Source is called once for
  // each slot; the weights are copied, so the caller may free them afterwards.
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
  int num_slots() const;  // the slots that this rank has in each layer
  int num_spares() const;
  // The sizes that such slots would have. first: this rank's first expert, which may be an outline;
  // null where it has no slots. Collective, and throws, as the constructor.
  struct Sizes {
    size_t expert_bytes = 0;   // of one block
    size_t bytes = 0;          // of all blocks together
    size_t staging_bytes = 0;  // of the spares among them
  };
  static Sizes sizes(int num_layers, int num_slots, int num_spares, const Mlp* first,
                     Communicator& comm);

  // The size of one block, which is the message that an expert travels as.
  size_t expert_bytes() const;
  size_t staging_bytes() const { return static_cast<size_t>(num_spares()) * expert_bytes(); }
  size_t bytes() const;  // the size of all blocks together

  // A layer's experts as they are now, for MoeLayer. They are valid until the layer's next
  // rearrange(). The next staging overwrites the blocks that the layer gives up there, so nobody
  // may still use the old Experts by then; in_use() tells.
  std::shared_ptr<const Experts> experts(int layer, Format format = Format::kStandard) const;
  int32_t logical(int layer, int slot) const;

  // The expert in a slot as a message, [expert_bytes()].
  std::span<const std::byte> message(int layer, int slot) const;
  // A spare to receive into, [expert_bytes()].
  std::span<std::byte> spare(int spare);
  // Does an Experts from before the last rearrange() still use this spare's memory?
  bool in_use(int spare) const;
  // Does the spare hold the expert that it should? This reads the whole block.
  struct Finding {
    MessageFault fault = MessageFault::kNone;
    std::string text;  // If there is a fault, this says what it is and where.
  };
  Finding check_spare(int spare, int layer, int32_t logical) const;

  // The next block of one slot: the block of another slot, which gives it up, or a spare. A Move
  // can't say this, since a spare is no slot of any placement. Exactly one of the last two is set.
  struct BlockChange {
    int slot = 0;  // counted from 0 on this rank, as is from_slot
    int from_slot = -1;
    int from_spare = -1;
  };
  // Gives slots of a layer other blocks, all at once. The blocks that are given up become the
  // spares. Each block may be named once, and every from_slot must be among the slots that change.
  // Throws InvalidArgument before anything has changed.
  void rearrange(int layer, std::span<const BlockChange> changes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trimtab
