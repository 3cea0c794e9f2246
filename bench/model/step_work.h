// SPDX-License-Identifier: Apache-2.0
// What one rank reads and computes in a step of a decoder: the parts of the roof that its time is
// compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bench/experts/paired.h"
#include "trimtab/decoder.h"
#include "trimtab/load.h"

namespace trimtab::bench {

// Tokens that follow each other in one sequence.
struct WorkOfChunk {
  int64_t first = 0;  // the position of the first one
  int64_t tokens = 0;
  int64_t logits = 0;  // tokens whose logits are computed
};

// What the chunks of a batch are, before it goes through the decoder.
std::vector<WorkOfChunk> work_of(std::span<const Chunk> batch);

struct WorkPart {
  Part part;
  DotKind dot;  // the multiplications of its format
};

class StepWork {
 public:
  // weights: outlive this. expert_bytes: the size of a routed expert, where others keep it.
  StepWork(const DecoderWeights& weights, KvFormat kv, std::optional<size_t> expert_bytes = {});

  // Adds a step. Weights are read once, those of experts only where they have rows; keys and values
  // once for each chunk.
  void add(std::span<const WorkOfChunk> chunks);
  // rows: those that each slot of a MoE layer has in the step.
  void add_experts(std::span<const int32_t> rows);

  void clear();
  double bytes() const;
  std::span<const WorkPart> parts() const { return parts_; }
  int64_t active_experts() const { return active_experts_; }  // of all layers and steps

 private:
  void add(double ops, double bytes, DotKind dot) { parts_.push_back({{ops, bytes}, dot}); }

  const DecoderWeights& weights_;
  const WeightBytes bytes_;
  const double expert_bytes_;
  const DotKind linear_, experts_;
  const double kv_bytes_;  // a position of a layer
  double linear_ops_ = 0;  // a token, in all maps but routed experts and the head
  std::vector<WorkPart> parts_;
  int64_t active_experts_ = 0;
};

// The dot product that a format of weights allows.
DotKind dot_of(WeightFormat format);

}  // namespace trimtab::bench
