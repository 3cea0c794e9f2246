// SPDX-License-Identifier: Apache-2.0
// A small decoder-only transformer, so that a real MoE model runs end to end and real hidden states
// and real routing drive the MoE layer: attention data-parallel (each rank has its own sequences),
// experts expert-parallel (each rank has its share). Families: mixtral, qwen2_moe, qwen3_moe,
// olmoe.
//
// Precision. Activations, keys, values, norms, router and softmax are f32 always. With f32 weights
// nothing is rounded. With bf16 weights every linear map but the router's (and the gate of a shared
// expert) has its weights and its input rounded to bf16 and sums in f32: q, k, v, o, dense and
// expert MLPs, and the output head. Embedding rows are read as the checkpoint has them.
//
// The result for a token depends on its own sequence alone: its bits are the same in any batch, for
// any chunking of the prompt, any number of threads, and, with the pull dispatcher, any number of
// ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trimtab/checkpoint.h"
#include "trimtab/communicator.h"
#include "trimtab/expert_slots.h"
#include "trimtab/layer.h"
#include "trimtab/load.h"
#include "trimtab/placement.h"
#include "trimtab/split.h"
#include "trimtab/team.h"
#include "trimtab/trace.h"
#include "trimtab/workspace.h"

namespace trimtab {

struct LayerWeights;

// Number of MoE layers. Placement, load and traces count these alone, in order; dense layers
// between them are left out.
int num_moe_layers(const ModelConfig& config);

// Who keeps the routed experts.
enum class RoutedExperts {
  kShared,  // DecoderWeights: one copy for all ranks of the process and all replicas
  kInSlots  // nobody yet: each rank asks for expert_slots(), so that its slots can change
};

// A model's weights, packed once. Immutable: shared by all ranks of the process and any number of
// threads.
class DecoderWeights {
 public:
  // dtype: kF32 or kBF16, how weights are kept (see above). placement: [MoE layers]; of the experts
  // only those that the slots of `ranks` hold are packed; empty means all ranks. experts: how
  // routed and shared experts are kept, and with it how their rows are rounded. If not given,
  // routed experts stay quantised as the checkpoint has them, where there is a format for all of
  // them, and so do shared experts, each for itself; else they are kept as dtype, like all other
  // weights. The file stays mapped for the embedding rows.
  // Throws InvalidArgument for a family that this decoder does not know and for a placement that
  // does not fit, FormatError for tensors that are absent or of another shape.
  static std::shared_ptr<const DecoderWeights> load(
      const SafeTensors& tensors, const ModelConfig& config, DType dtype,
      const Placement& placement, std::span<const int> ranks = {},
      std::optional<WeightFormat> experts = std::nullopt,
      RoutedExperts routed = RoutedExperts::kShared);
  ~DecoderWeights();

  // The experts of this rank's slots, packed from the checkpoint into memory of their own, one copy
  // for each slot, as ExpertSlots and Migrator want them. spares: what the rank can receive for one
  // layer. Collective. Throws as load() and ExpertSlots do.
  std::unique_ptr<ExpertSlots> expert_slots(const Placement& placement, Communicator& comm,
                                            int spares) const;

  const ModelConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }
  WeightFormat expert_format() const { return expert_format_; }  // of the routed experts
  size_t bytes() const;                                          // of the packed weights
  size_t expert_bytes() const;  // of one routed expert; 0 where none is packed

 private:
  friend class Decoder;
  DecoderWeights(const SafeTensors& tensors, const ModelConfig& config, DType dtype,
                 WeightFormat expert_format);

  ModelConfig config_;
  DType dtype_;
  WeightFormat expert_format_;
  SafeTensors tensors_;  // keeps embedding_ mapped
  TensorView embedding_;
  std::vector<LayerWeights> layers_;
  std::vector<float> final_norm_;
  Linear head_;
};

// The keys and values of one sequence, f32. One thread (with its team) uses it at a time.
class KvCache {
 public:
  // capacity: the most positions the sequence may get.
  KvCache(const ModelConfig& config, int64_t capacity);

  int64_t length() const { return length_; }  // positions that have been through step()
  int64_t capacity() const { return capacity_; }

 private:
  friend class Decoder;
  float* keys(int layer, int head) const;    // [capacity, head_dim]
  float* values(int layer, int head) const;  // [capacity, head_dim]

  int64_t capacity_;
  int64_t length_ = 0;
  int num_layers_;
  int num_heads_;
  int head_dim_;
  Buffer data_;  // [layers, key-value heads, (keys, values), capacity, head_dim]
};

// The next tokens of one sequence.
struct Chunk {
  enum class Logits { kNone, kLast, kAll };

  KvCache* cache = nullptr;
  std::span<const int32_t> tokens;
  Logits logits = Logits::kNone;  // for which of the tokens
};

struct DecoderOptions {
  // A name that make_dispatcher() knows, or "auto": by choose_dispatcher().
  std::string dispatcher = "auto";
  // The most tokens of this rank in one step; the same on every rank. Memory is reserved for it.
  int max_tokens = 256;
  // Compute threads of this rank, the caller's included.
  int threads = 1;
  // Which replica a pick goes to; the same on every rank.
  SplitRule split = SplitRule::kStatic;
  // Records what the thread that calls step() does; outlives the decoder. Null: nothing is
  // recorded.
  TraceBuffer* trace = nullptr;
};

// One rank's decoder. All ranks of the group make the same number of step() calls.
class Decoder {
 public:
  // slots: this rank's experts, as they are now; null: weights must hold them. comm: outlives the
  // decoder and is used by nobody else during step(). The placement may have redundant experts.
  // Throws InvalidArgument when things do not fit.
  Decoder(std::shared_ptr<const DecoderWeights> weights, const Placement& placement,
          Communicator& comm, const DecoderOptions& options = {},
          const ExpertSlots* slots = nullptr);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Runs the chunks of this rank, possibly none, through the model and appends them to their
  // caches; chunks of one cache follow each other. logits: f32 [tokens wanted, vocab_size], in the
  // order of the batch. recorder: gets the rows that each slot of this rank received in its open
  // step, or null. Throws InvalidArgument for ids outside the vocabulary, too many tokens, full
  // caches and wrong shapes, CommError when a peer fails. After an exception neither the decoder
  // nor the caches can be used any more.
  void step(std::span<const Chunk> batch, Rows logits, LoadRecorder* recorder = nullptr);

  // Another placement for one MoE layer, between steps and at the same step on every rank: its
  // experts on this rank (ExpertSlots::experts) and where the experts of all ranks are. Same slots
  // per rank as before. Throws InvalidArgument before anything has changed.
  void replace_layer(int moe_layer, std::shared_ptr<const Experts> experts,
                     std::shared_ptr<const SplitTable> replicas);

  const ModelConfig& config() const { return weights_->config(); }
  // What was chosen or asked for.
  std::string_view dispatcher() const { return dispatcher_->name(); }
  Format format() const { return dispatcher_->format(); }  // that experts of replace_layer() take
  const DecoderOptions& options() const { return options_; }
  Communicator& comm() { return lane_.comm; }

 private:
  struct Activations;
  struct Place;  // where a token stands in its sequence

  std::shared_ptr<const Dispatcher> make_dispatcher(Communicator& comm) const;
  std::vector<MoeLayer> make_moe_layers(Communicator& comm, const ExpertSlots* slots) const;
  std::shared_ptr<const Experts> experts_of(const LayerWeights& weights, int rank) const;
  size_t workspace_bytes() const;
  void check(std::span<const Chunk> batch, Rows logits) const;
  Activations take_activations(int64_t tokens);
  void embed(std::span<const Chunk> batch, const Activations& a) const;
  void attention(const LayerWeights& weights, int layer, const Activations& a);
  void append_to_caches(const LayerWeights& weights, int layer, const Activations& a);
  void feed_forward(const LayerWeights& weights, const Activations& a, LoadRecorder* recorder);
  void head(std::span<const Chunk> batch, const Activations& a, Rows logits);
  ConstRows linear_input(Rows x, const Activations& a);

  std::shared_ptr<const DecoderWeights> weights_;
  DecoderOptions options_;
  Placement placement_;
  std::vector<float> inverse_frequencies_;  // [head_dim / 2] of the rotary embedding
  std::shared_ptr<const Dispatcher> dispatcher_;
  std::vector<MoeLayer> moe_layers_;
  Team team_;
  Workspace workspace_;
  std::vector<std::unique_ptr<Communicator>> owned_groups_;
  std::vector<Communicator*> groups_;
  Lane lane_;
};

struct GenerateProgress {
  int64_t steps = 0;               // done by now
  int64_t new_tokens = 0;          // of all ranks
  int64_t unfinished_prompts = 0;  // of all ranks
};

struct GenerateOptions {
  int max_new_tokens = 64;  // per prompt
  // Sequences of one rank that are in a step together; further prompts wait until one has ended. 0:
  // as many as a step has tokens for.
  int max_sequences = 0;
  // 0: the most likely token, ties to the lower id. Above 0: drawn from softmax(logits /
  // temperature); the draw is a function of (seed, prompt, position), so it does not depend on
  // ranks or batches either.
  float temperature = 0.0F;
  uint64_t seed = 0;
  // Called before each step and at the end; may be set on one rank only.
  std::function<void(const GenerateProgress&)> progress = {};
};

// What goes along with the steps of generate() on one rank: recording, balancing. Every rank has
// one, or none has.
class StepObserver {
 public:
  struct Step {
    int64_t number = 0;
    Phase phase = Phase::kDecode;     // the same on every rank
    std::span<const uint64_t> words;  // [ranks] what each rank's observer had to say
  };

  virtual ~StepObserver() = default;
  // What the other ranks' observers are to know before the next step. Costs no message of its own.
  virtual uint64_t word() { return 0; }
  // Returns where the step's load goes, with a step open, or null.
  virtual LoadRecorder* before_step(const Step& step) = 0;
  virtual void after_step() = 0;
};

// Records every step.
class StepRecorder final : public StepObserver {
 public:
  explicit StepRecorder(LoadRecorder& recorder) : recorder_(recorder) {}
  LoadRecorder* before_step(const Step& step) override {
    recorder_.begin_step(step.phase);
    return &recorder_;
  }
  void after_step() override { recorder_.keep_step(); }

 private:
  LoadRecorder& recorder_;
};

enum class Finish { kEndToken, kMaxNewTokens, kContextFull };

struct Generation {
  std::vector<int32_t> token_ids;  // new ones; the end token included
  Finish finish = Finish::kMaxNewTokens;
};

// Generates text for all prompts together, prompt i on rank i % ranks: every step takes one token
// of each sequence that is being decoded and fills up with chunks of prompts. Collective; prompts
// and options (but progress) must be the same on every rank. results: [prompts]; each rank writes
// those of its own prompts, so ranks of one process may share it. Throws InvalidArgument, on every
// rank and before the first step, for prompts that are empty, have ids outside the vocabulary or
// exceed max_position_embeddings. A sequence that reaches max_position_embeddings ends there.
void generate(Decoder& decoder, std::span<const std::vector<int32_t>> prompts,
              const GenerateOptions& options, std::span<Generation> results,
              StepObserver* observer = nullptr);

// The most steps that generate() can take for these prompts, to reserve a LoadRecorder by.
// max_tokens: of a step.
int64_t max_generate_steps(const ModelConfig& config, std::span<const std::vector<int32_t>> prompts,
                           const GenerateOptions& options, int max_tokens, int num_ranks);

}  // namespace trimtab
