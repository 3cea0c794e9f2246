// SPDX-License-Identifier: Apache-2.0
// Times a whole model: reading a prompt, and decode steps of some sequences behind some context,
// beside what the machine gives just then.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/machine/ceilings.h"
#include "bench/model/step_work.h"
#include "trimtab/decoder.h"

namespace trimtab::bench {

// Times are those of the slowest rank; bytes, experts and rates are of all ranks together.
struct ModelRow {
  int64_t batch = 0;    // sequences of each rank
  int64_t context = 0;  // positions of each before the tokens that are timed
  int64_t tokens = 0;   // tokens of each sequence that are timed
  int64_t steps = 0;    // the steps in which these go through the model
  Spread ms;            // of these steps together
  double tokens_per_second = 0;
  double bytes = 0;           // of weights, keys and values that they read
  double active_experts = 0;  // experts with rows, mean over MoE layers and steps
  Spread pct_stream;          // these bytes over the time, of the stream of cold memory
  Spread pct_roof;  // the least time for bytes and operations, of the time: see roof_seconds()
  int rounds = 0;
};

struct ModelEffort {
  double seconds = 1;  // for each row, and
  int least = 5;       // rounds, however long they take
  int most = 301;
  size_t cold_bytes = size_t{1280} << 20;  // memory of all ranks of a process to stream from
};

// One rank's side; all ranks make the same calls. Token ids are random, from a fixed seed.
class ModelBench {
 public:
  // decoder: without a layout, so that each rank has sequences of its own; weights and placement
  // are those that it was made of. Decoder and weights outlive this. Collective, as are the
  // functions below.
  ModelBench(Decoder& decoder, const DecoderWeights& weights, const Placement& placement,
             KvFormat kv, const ModelEffort& effort);

  // A prompt of so many tokens on each rank, from the first step to the logits of its last token.
  ModelRow prefill(int64_t tokens);
  // A step of one token of each of `batch` sequences a rank, each behind `context` positions: the
  // same ones up to the last 16, which are each sequence's own. Throws InvalidArgument, on every
  // rank, where their keys and values don't fit into free memory.
  ModelRow decode(int64_t batch, int64_t context);

  // Bytes per second of all ranks together: the median of what the rows measured.
  double stream() const;

 private:
  int32_t token(uint64_t sequence, int64_t position) const;
  std::vector<int32_t> tokens(uint64_t sequence, int64_t first, int64_t count) const;
  void check_positions(int64_t count) const;
  void check_memory(int64_t batch, int64_t positions) const;
  void step(std::span<const Chunk> batch);
  template <class Body>
  ModelRow measure(ModelRow row, int64_t repeats, const Body& body);
  std::vector<double> of_ranks(double mine) const;
  double max_of_ranks(double mine) const;
  double sum_of_ranks(double mine) const;

  Decoder& decoder_;
  const DecoderWeights& weights_;
  const KvFormat kv_;
  const ModelEffort effort_;
  const int ranks_here_;  // ranks on this host
  Team team_;
  std::unique_ptr<Ceilings> ceilings_;
  StepWork work_;
  LoadRecorder recorder_;
  std::vector<float> logits_;
  int64_t steps_ = 0;  // since the row's round began
  std::vector<double> streams_;
};

}  // namespace trimtab::bench
