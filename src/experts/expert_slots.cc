// SPDX-License-Identifier: Apache-2.0
#include "trimtab/expert_slots.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/cat.h"
#include "experts/expert_block.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {
namespace {

// A rank's wish, as the ranks exchange them.
struct Wish {
  ExpertKind kind;
  int64_t has_slots;
};

void check_numbers(int num_layers, int num_slots, int num_spares) {
  if (num_layers >= 1 && num_slots >= 0 && num_spares >= 0) return;
  throw InvalidArgument(cat("expert slots: ", num_layers, " layers of ", num_slots, " slots and ",
                            num_spares, " spares"));
}

size_t num_blocks(int num_layers, int num_slots, int num_spares) {
  return cells(num_layers, num_slots) + static_cast<size_t>(num_spares);
}

// The one kind of all ranks that have slots. first: this rank's first expert, or null.
ExpertKind agree(const Mlp* first_here, Communicator& comm) {
  const Wish wish = {first_here != nullptr ? kind_of(*first_here) : ExpertKind{},
                     first_here != nullptr};
  std::vector<Wish> wishes(comm.size());
  std::vector<int64_t> bytes(wishes.size());
  Pending pending = comm.all_gather_v(std::as_bytes(std::span(&wish, 1)),
                                      std::as_writable_bytes(std::span(wishes)), bytes);
  pending.wait();
  pending.wait_released();

  uint32_t present = 0;
  for (const Wish& w : wishes) present |= w.kind.present;
  const auto first = std::ranges::find_if(wishes, [](const Wish& w) { return w.has_slots != 0; });
  if (first == wishes.end()) throw InvalidArgument("expert slots: no rank has any");
  const auto complete = [present](ExpertKind kind) {
    kind.present |= present & ExpertKind::kZeroPoints;
    return kind;
  };
  const ExpertKind kind = complete(first->kind);
  for (const Wish& w : wishes) {
    if (w.has_slots == 0) continue;
    if (const auto other = difference(complete(w.kind), kind); other.fault != MessageFault::kNone) {
      throw InvalidArgument(cat("expert slots: the experts of rank ", &w - wishes.data(), " are ",
                                other.text, " as those of rank ", first - wishes.begin()));
    }
  }
  return kind;
}

}  // namespace

struct ExpertSlots::State {
  struct Block {
    std::byte* data;
    std::shared_ptr<const Mlp> weights;  // a view of it
  };

  State(int layers, int slots_each, int num_spares, const ExpertKind& kind)
      : layout(kind), num_layers(layers), num_slots(slots_each) {
    const size_t in_slots = cells(layers, slots_each),
                 count = num_blocks(layers, slots_each, num_spares);
    memory = std::make_shared<Buffer>(count * layout.bytes());
    for (size_t b = 0; b < count; ++b) {
      std::byte* const data = memory->data() + b * layout.bytes();
      (b < in_slots ? slots : spares).push_back({data, layout.view(data, memory)});
    }
  }

  Block& at(int layer, int slot) {
    if (layer < 0 || layer >= num_layers || slot < 0 || slot >= num_slots) {
      throw InvalidArgument(cat("expert slots: slot ", slot, " of layer ", layer, "; there are ",
                                num_layers, " x ", num_slots));
    }
    return slots[cells(layer, num_slots) + static_cast<size_t>(slot)];
  }
  Block& spare(int spare) {
    if (spare < 0 || spare >= std::ssize(spares)) {
      throw InvalidArgument(cat("expert slots: spare ", spare, " of ", spares.size()));
    }
    return spares[spare];
  }
  std::span<std::byte> bytes(const Block& block) const { return {block.data, layout.bytes()}; }

  const ExpertBlock layout;
  const int num_layers, num_slots;
  std::shared_ptr<Buffer> memory;
  std::vector<Block> slots;  // [layers, num_slots]
  std::vector<Block> spares;
};

ExpertSlots::ExpertSlots(int num_layers, int num_slots, int num_spares, const Source& source,
                         Communicator& comm) {
  check_numbers(num_layers, num_slots, num_spares);
  std::optional<Expert> first;
  if (num_slots > 0) first = source(0, 0);
  const ExpertKind kind = agree(first ? first->weights.get() : nullptr, comm);
  state_ = std::make_unique<State>(num_layers, num_slots, num_slots > 0 ? num_spares : 0, kind);
  for (int l = 0; l < num_layers; ++l) {
    for (int s = 0; s < num_slots; ++s) {
      const Expert expert = first ? *std::exchange(first, std::nullopt) : source(l, s);
      state_->layout.fill(state_->bytes(state_->at(l, s)), *expert.weights, l, expert.logical);
    }
  }
}

ExpertSlots::~ExpertSlots() = default;

ExpertSlots::Sizes ExpertSlots::sizes(int num_layers, int num_slots, int num_spares,
                                      const Mlp* first, Communicator& comm) {
  check_numbers(num_layers, num_slots, num_spares);
  const size_t block = ExpertBlock(agree(first, comm)).bytes();
  if (num_slots == 0) return {.expert_bytes = block};
  return {.expert_bytes = block,
          .bytes = num_blocks(num_layers, num_slots, num_spares) * block,
          .staging_bytes = cells(num_spares) * block};
}

int ExpertSlots::num_layers() const {
  return state_->num_layers;
}
int ExpertSlots::num_slots() const {
  return state_->num_slots;
}
int ExpertSlots::num_spares() const {
  return static_cast<int>(state_->spares.size());
}
size_t ExpertSlots::expert_bytes() const {
  return state_->layout.bytes();
}
size_t ExpertSlots::bytes() const {
  return state_->memory->bytes();
}

std::shared_ptr<const Experts> ExpertSlots::experts(int layer, Format format) const {
  std::vector<std::shared_ptr<const Mlp>> weights;
  for (int s = 0; s < state_->num_slots; ++s) weights.push_back(state_->at(layer, s).weights);
  return make_grouped_experts(std::move(weights), state_->layout.kind().hidden,
                              state_->layout.format(), format);
}

int32_t ExpertSlots::logical(int layer, int slot) const {
  return ExpertBlock::logical(message(layer, slot));
}

std::span<const std::byte> ExpertSlots::message(int layer, int slot) const {
  return state_->bytes(state_->at(layer, slot));
}

std::span<std::byte> ExpertSlots::spare(int spare) {
  return state_->bytes(state_->spare(spare));
}

bool ExpertSlots::in_use(int spare) const {
  return state_->spare(spare).weights.use_count() > 1;
}

ExpertSlots::Finding ExpertSlots::check_spare(int spare, int layer, int32_t logical) const {
  return state_->layout.check(state_->bytes(state_->spare(spare)), layer, logical);
}

void ExpertSlots::rearrange(int layer, std::span<const BlockChange> changes) {
  if (layer < 0 || layer >= num_layers())
    throw InvalidArgument(cat("expert slots: layer ", layer, " of ", num_layers()));
  std::vector<State::Block> next;
  std::vector<bool> changes_slot(num_slots()), takes_slot(changes_slot.size());
  std::vector<bool> takes_spare(num_spares());
  const auto once = [&](std::vector<bool>& named, int index) {
    if (named[index]) {
      throw InvalidArgument(
          cat("expert slots: a change of layer ", layer, " names block ", index, " twice"));
    }
    named[index] = true;
  };
  for (const BlockChange& change : changes) {
    state_->at(layer, change.slot);
    once(changes_slot, change.slot);
    if ((change.from_slot < 0) == (change.from_spare < 0)) {
      throw InvalidArgument(cat("expert slots: slot ", change.slot, " gets the block of slot ",
                                change.from_slot, " and spare ", change.from_spare));
    }
    const bool from_spare = change.from_spare >= 0;
    next.push_back(from_spare ? state_->spare(change.from_spare)
                              : state_->at(layer, change.from_slot));
    from_spare ? once(takes_spare, change.from_spare) : once(takes_slot, change.from_slot);
  }
  for (size_t s = 0; s < takes_slot.size(); ++s) {
    if (takes_slot[s] && !changes_slot[s]) {
      throw InvalidArgument(cat("expert slots: slot ", s, " of layer ", layer,
                                " gives its block away and gets none"));
    }
  }

  // The blocks that nobody takes over go where spares were taken from: there are equally many.
  size_t spare = 0;
  for (const BlockChange& change : changes) {
    if (takes_slot[change.slot]) continue;
    while (!takes_spare[spare]) ++spare;
    state_->spares[spare++] = std::move(state_->at(layer, change.slot));
  }
  for (size_t c = 0; c < changes.size(); ++c)
    state_->at(layer, changes[c].slot) = std::move(next[c]);
}

}  // namespace trimtab
