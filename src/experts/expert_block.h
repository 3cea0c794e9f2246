// SPDX-License-Identifier: Apache-2.0
// One expert as one block of memory: a header that says what it is, then its panels, scales, zero
// points and biases, each at a multiple of 64 bytes. The kernels read the parts where they are, and
// the block is sent as it is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "trimtab/expert_slots.h"

namespace trimtab {

// The properties that experts must have in common to take each other's place. They are plain bytes,
// which ranks exchange and compare.
struct ExpertKind {
  // panels, scales, zeros, bias, row_scale and order, of gate_up and then of down.
  static constexpr int kParts = 12;
  static constexpr uint32_t kZeroPoints = 1U << 2 | 1U << 8;  // in present

  int64_t hidden, intermediate;
  int32_t scheme, group;        // as in WeightFormat
  int32_t activation;           // an ActivationKind
  uint32_t alpha, limit, beta;  // the bits of the Activation's floats
  char isa[16];
  int32_t width;     // columns of the kernels' panels
  uint32_t present;  // bit p: part p is there

  bool operator==(const ExpertKind&) const = default;
};
static_assert(std::has_unique_object_representations_v<ExpertKind>);

ExpertKind kind_of(const Mlp& mlp);
// Says what differs, and how, as "f32, not bf16"; kNone and no text where nothing does.
ExpertSlots::Finding difference(const ExpertKind& found, const ExpertKind& wanted);

class ExpertBlock {
 public:
  // Describes the blocks of this kind. Throws InvalidArgument when this machine has no such
  // kernels.
  explicit ExpertBlock(const ExpertKind& kind);

  const ExpertKind& kind() const { return kind_; }
  WeightFormat format() const;
  size_t bytes() const { return bytes_; }

  // Copies an expert into a block. Zero points that it does not have, but the kind, are filled in.
  // Throws InvalidArgument for one of another kind.
  void fill(std::span<std::byte> block, const Mlp& mlp, int layer, int32_t logical) const;
  // The expert in a block, whose memory lasts as long as its owner.
  std::shared_ptr<const Mlp> view(std::byte* block, const std::shared_ptr<void>& owner) const;
  // Is the block this expert, unharmed? Reads all of it.
  ExpertSlots::Finding check(std::span<const std::byte> block, int layer, int32_t logical) const;
  static int32_t logical(std::span<const std::byte> block);

 private:
  struct Part {
    size_t offset, bytes;
  };

  ExpertKind kind_;
  PackedWeights gate_up_, down_;  // without memory
  std::array<Part, ExpertKind::kParts> parts_;
  size_t bytes_ = 0;
};

}  // namespace trimtab
