// SPDX-License-Identifier: Apache-2.0
#include "experts/expert_block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/cat.h"
#include "base/checksum.h"
#include "experts/isa.h"
#include "experts/weights.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// In front of every block. Little is checked by its own field: the checksums come first, and what
// they let through is what a rank has written.
struct Header {
  // "tbexprt1"; it reads differently in another byte order.
  static constexpr uint64_t kMagic = 0x3174727078656274;

  uint64_t magic;
  int32_t layer, logical;
  ExpertKind kind;
  uint64_t contents_bytes;
  uint64_t contents_checksum;
  std::array<uint64_t, 3> reserved;
  uint64_t checksum;  // of all before it

  static const Header& of(std::span<const std::byte> block) {
    return *reinterpret_cast<const Header*>(block.data());
  }
  uint64_t own_checksum() const {
    return trimtab::checksum(std::as_bytes(std::span(this, 1)).first(offsetof(Header, checksum)));
  }
};
static_assert(sizeof(Header) == 128 && std::has_unique_object_representations_v<Header>);

constexpr size_t kLine = 64;

const char* name(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kSilu:
      return "silu";
    case ActivationKind::kGelu:
      return "gelu";
    case ActivationKind::kGeluTanh:
      return "gelu_tanh";
    case ActivationKind::kSwigluClamp:
      return "swiglu_clamp";
    case ActivationKind::kSwigluStep:
      return "swiglu_step";
  }
  return "an unknown activation";
}

std::string activation_text(const ExpertKind& kind) {
  return cat(name(static_cast<ActivationKind>(kind.activation)), " (",
             std::bit_cast<float>(kind.alpha), ", ", std::bit_cast<float>(kind.limit), ", ",
             std::bit_cast<float>(kind.beta), ")");
}

std::string parts_text(uint32_t present) {
  static constexpr std::array<const char*, ExpertKind::kParts> kNames = {"gate and up",
                                                                         "gate and up scales",
                                                                         "gate and up zero points",
                                                                         "gate and up biases",
                                                                         "a1_scale",
                                                                         "gate and up order",
                                                                         "down",
                                                                         "down scales",
                                                                         "down zero points",
                                                                         "down biases",
                                                                         "a2_scale",
                                                                         "down order"};
  std::string text;
  for (size_t p = 0; p < kNames.size(); ++p) {
    if (present >> p & 1U) text += cat(text.empty() ? "" : ", ", kNames[p]);
  }
  return text;
}

WeightFormat format_of(const ExpertKind& kind) {
  return {static_cast<Scheme>(kind.scheme), kind.group};
}

// The parts of gate_up and then of down.
std::array<const Buffer*, ExpertKind::kParts> buffers(const PackedWeights& gate_up,
                                                      const PackedWeights& down) {
  std::array<const Buffer*, ExpertKind::kParts> found;
  for (size_t p = 0; p < kPackedParts.size(); ++p) {
    found[p] = &(gate_up.*kPackedParts[p].buffer);
    found[kPackedParts.size() + p] = &(down.*kPackedParts[p].buffer);
  }
  return found;
}

}  // namespace

ExpertKind kind_of(const Mlp& mlp) {
  const PackedWeights& gate_up = mlp.gate_up_packed();
  ExpertKind kind = {};
  kind.hidden = mlp.hidden();
  kind.intermediate = mlp.intermediate();
  kind.scheme = static_cast<int32_t>(gate_up.format.scheme);
  kind.group = gate_up.format.group;
  kind.activation = static_cast<int32_t>(mlp.activation().kind);
  kind.alpha = std::bit_cast<uint32_t>(mlp.activation().alpha);
  kind.limit = std::bit_cast<uint32_t>(mlp.activation().limit);
  kind.beta = std::bit_cast<uint32_t>(mlp.activation().beta);
  std::strncpy(kind.isa, gate_up.kernels->isa, sizeof kind.isa - 1);
  kind.width = gate_up.kernels->width;
  const auto parts = buffers(gate_up, mlp.down_packed());
  for (size_t p = 0; p < parts.size(); ++p) {
    if (parts[p]->bytes() > 0) kind.present |= 1U << p;
  }
  return kind;
}

ExpertSlots::Finding difference(const ExpertKind& found, const ExpertKind& wanted) {
  if (found == wanted) return {};
  if (found.hidden != wanted.hidden || found.intermediate != wanted.intermediate) {
    return {MessageFault::kShape, cat(found.hidden, " -> ", found.intermediate, ", not ",
                                      wanted.hidden, " -> ", wanted.intermediate)};
  }
  if (format_of(found) != format_of(wanted)) {
    return {MessageFault::kFormat, cat(name(format_of(found)), ", not ", name(format_of(wanted)))};
  }
  if (std::strncmp(found.isa, wanted.isa, sizeof found.isa) != 0 || found.width != wanted.width) {
    return {MessageFault::kInstructionSet, cat("packed for ", found.isa, ", not ", wanted.isa)};
  }
  if (found.present != wanted.present) {
    return {MessageFault::kFormat,
            cat("of ", parts_text(found.present), ", not ", parts_text(wanted.present))};
  }
  return {MessageFault::kShape, cat(activation_text(found), ", not ", activation_text(wanted))};
}

ExpertBlock::ExpertBlock(const ExpertKind& kind) : kind_(kind) {
  const GemmKernels& kernels = select_kernels(kind.isa, available_kernels());
  gate_up_ = describe_weights(kind.hidden, kind.intermediate, format_of(kind), true, &kernels);
  down_ = describe_weights(kind.intermediate, kind.hidden, format_of(kind), false, &kernels);
  const PartBytes first = part_bytes(gate_up_), second = part_bytes(down_);
  bytes_ = sizeof(Header);
  for (size_t p = 0; p < parts_.size(); ++p) {
    const PartBytes& sizes = p < kPackedParts.size() ? first : second;
    const size_t bytes = sizes.*kPackedParts[p % kPackedParts.size()].bytes;
    parts_[p] = {bytes_, kind.present >> p & 1U ? bytes : 0};
    bytes_ += (parts_[p].bytes + kLine - 1) / kLine * kLine;
  }
}

WeightFormat ExpertBlock::format() const {
  return format_of(kind_);
}

void ExpertBlock::fill(std::span<std::byte> block, const Mlp& mlp, int layer,
                       int32_t logical) const {
  ExpertKind kind = kind_of(mlp);
  // Zero points may come in with the kind, but never go.
  kind.present |= kind_.present & ExpertKind::kZeroPoints;
  if (const auto other = difference(kind, kind_); other.fault != MessageFault::kNone) {
    throw InvalidArgument(cat("expert ", logical, " of layer ", layer, " is ", other.text));
  }
  const auto parts = buffers(mlp.gate_up_packed(), mlp.down_packed());
  for (size_t p = 0; p < parts.size(); ++p) {
    std::byte* const to = block.data() + parts_[p].offset;
    if (parts[p]->bytes() > 0) {
      std::memcpy(to, parts[p]->data(), parts[p]->bytes());
    } else if (parts_[p].bytes > 0 && (ExpertKind::kZeroPoints >> p & 1U)) {
      const int bytes = storage(format(), gate_up_.in).zero_bytes;
      const auto count = static_cast<int64_t>(parts_[p].bytes) / bytes;
      for (int64_t i = 0; i < count; ++i) put_zero_point(to, i, bytes, zero_code(format()));
    }
  }
  Header header = {};
  header.magic = Header::kMagic;
  header.layer = layer;
  header.logical = logical;
  header.kind = kind_;
  header.contents_bytes = bytes_ - sizeof(Header);
  header.contents_checksum = checksum(block.subspan(sizeof(Header)));
  header.checksum = header.own_checksum();
  std::memcpy(block.data(), &header, sizeof header);
}

std::shared_ptr<const Mlp> ExpertBlock::view(std::byte* block,
                                             const std::shared_ptr<void>& owner) const {
  const auto part = [&](size_t p) {
    return parts_[p].bytes == 0 ? Buffer()
                                : Buffer(block + parts_[p].offset, parts_[p].bytes, owner);
  };
  const auto weights = [&](const PackedWeights& shape, size_t first) {
    PackedWeights w =
        describe_weights(shape.in, shape.out, shape.format, shape.gated, shape.kernels);
    for (size_t p = 0; p < kPackedParts.size(); ++p) w.*kPackedParts[p].buffer = part(first + p);
    return w;
  };
  const Activation activation{static_cast<ActivationKind>(kind_.activation),
                              std::bit_cast<float>(kind_.alpha), std::bit_cast<float>(kind_.limit),
                              std::bit_cast<float>(kind_.beta)};
  return std::make_shared<const Mlp>(weights(gate_up_, 0), weights(down_, ExpertKind::kParts / 2),
                                     activation);
}

ExpertSlots::Finding ExpertBlock::check(std::span<const std::byte> block, int layer,
                                        int32_t logical) const {
  const Header& header = Header::of(block);
  if (header.magic != Header::kMagic || header.checksum != header.own_checksum()) {
    return {MessageFault::kDamaged, "its header is damaged"};
  }
  if (auto other = difference(header.kind, kind_); other.fault != MessageFault::kNone) return other;
  if (header.layer != layer || header.logical != logical) {
    return {MessageFault::kExpert, cat("expert ", header.logical, " of layer ", header.layer,
                                       ", not expert ", logical, " of layer ", layer)};
  }
  if (header.contents_bytes != bytes_ - sizeof(Header) ||
      header.contents_checksum != checksum(block.subspan(sizeof(Header)))) {
    return {MessageFault::kDamaged, "its weights are damaged"};
  }
  return {};
}

int32_t ExpertBlock::logical(std::span<const std::byte> block) {
  return Header::of(block).logical;
}

}  // namespace trimtab
