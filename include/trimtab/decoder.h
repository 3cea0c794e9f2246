// SPDX-License-Identifier: Apache-2.0
// A small decoder-only transformer. It runs real MoE models end to end, so that real hidden states
// and real routing drive the MoE layer. Attention is data-parallel: each rank has its own
// sequences, or shares them with the other ranks of its group, which all compute it (layout.h).
// Experts are expert-parallel, each rank has its share, or tensor-parallel, each rank has a part of
// every expert. It knows the families mixtral,
// qwen2_moe, qwen3_moe and olmoe. generate.h writes text with it.
//
// Precision. Activations, norms, router and softmax are always f32, and so are keys and values
// unless a KvCache keeps them in another format. With f32 weights
// nothing is rounded. With bf16 weights every linear map but the router's (and the gate of a shared
// expert) has its weights and its input rounded to bf16 and sums in f32: q, k, v, o, dense and
// expert MLPs, and the output head. With a quantised format they have their weights, and their
// inputs where the format says so, quantised. Embedding rows are read as the checkpoint has them.
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
#include "trimtab/dispatcher.h"
#include "trimtab/expert_slots.h"
#include "trimtab/kv_format.h"
#include "trimtab/layer.h"
#include "trimtab/layout.h"
#include "trimtab/load.h"
#include "trimtab/placement.h"
#include "trimtab/split.h"
#include "trimtab/team.h"
#include "trimtab/trace.h"
#include "trimtab/workspace.h"

namespace trimtab {

class Attention;
class KvHead;
class LayerSource;
struct LayerWeights;

// The number of layers that have experts. Placement, load and traces count only these, in order;
// they leave out the dense layers between them.
int num_moe_layers(const ModelConfig& config);
// The numbers of these layers among all layers of the model, ascending.
std::vector<int> moe_layer_ids(const ModelConfig& config);

// Who keeps the routed experts.
enum class RoutedExperts {
  kShared,  // DecoderWeights keeps them once, for all ranks of the process and all replicas.
  kInSlots  // Each rank keeps its own: it asks for expert_slots(), so that its slots can change.
};

// How weights are kept, which also says how the rows that meet them are rounded.
struct DecoderFormats {
  // NOLINTNEXTLINE: implicit
  DecoderFormats(DType rest, std::optional<WeightFormat> of_experts = std::nullopt,
                 std::optional<WeightFormat> of_linear = std::nullopt)
      : dtype(rest), experts(of_experts), linear(of_linear) {}

  // kF32 or kBF16: of all that is not named below.
  DType dtype;
  // Of routed and shared experts. If not given, routed experts stay quantised as the checkpoint has
  // them where one format holds all of them, and each shared expert stays as it is where a format
  // holds it; otherwise they are kept as dtype.
  std::optional<WeightFormat> experts;
  // Of attention's q, k, v and o, dense layers and the output head; if not given, dtype.
  std::optional<WeightFormat> linear;
};

// How far loading has come.
struct LoadProgress {
  size_t bytes = 0;  // size of what is ready
  int layers = 0;    // layers that are complete, of num_layers
  int num_layers = 0;
};

struct LoadOptions {
  // Only the experts that the slots of these ranks hold are loaded; empty: all ranks.
  std::span<const int> ranks = {};
  RoutedExperts routed = RoutedExperts::kShared;
  // ParallelLayout::expert_parts(): routed and shared experts are packed in so many parts, and rank
  // r holds part r % expert_parts of each of its own.
  int expert_parts = 1;
  // Threads that pack the weights of a checkpoint, the caller's included; the bits are the same for
  // any number. Those of a packed model are mapped, which takes one.
  int threads = 1;
  // Nothing of the weights is read, and no memory taken for them: what is loaded knows its sizes,
  // and a Decoder of it says what a real one would reserve. Weights that a format can't hold are
  // not noticed, and of packed models not that files are damaged.
  bool outline = false;
  // Called after every expert and matrix, by the thread that loads.
  std::function<void(const LoadProgress&)> progress = {};
};

// What packed weights take, by what reads them.
struct WeightBytes {
  size_t routed = 0;  // routed experts, those that DecoderWeights itself keeps
  size_t head = 0;    // the output head, which only tokens read whose logits are wanted
  size_t others = 0;  // all else, which every step reads

  size_t total() const { return routed + head + others; }
};

// A model's weights, packed once. They are immutable: all ranks of the process and any number of
// threads share them.
class DecoderWeights {
 public:
  // tensors: of a checkpoint, which are packed here, or of a packed model (packed_model.h), whose
  // weights stay in the mapped files. placement: [MoE layers]. The file stays mapped for the
  // embedding rows; other pages of a checkpoint are given back as they have been packed. Throws
  // InvalidArgument for a family that this decoder does not know, for a placement that does not
  // fit, for weights that a format can't hold (with the name of their module), and, if the format
  // of experts is not given, where the one taken would round rows otherwise than the checkpoint
  // says (check_rounding_of_rows); for a packed model also for other formats than its own and for
  // experts in parts. Throws FormatError for tensors that are absent, of another shape, or that
  // have no place in the model.
  static std::shared_ptr<const DecoderWeights> load(const SafeTensors& tensors,
                                                    const ModelConfig& config,
                                                    const DecoderFormats& formats,
                                                    const Placement& placement,
                                                    const LoadOptions& options = {});
  ~DecoderWeights();

  // Puts the experts of this rank's slots, from the checkpoint or the packed model, each into
  // memory of its own, as ExpertSlots and Migrator want them. spares: how many experts the rank
  // can receive for one layer. threads: of this rank, LoadOptions::threads. Collective. Throws as
  // load() and ExpertSlots do.
  std::unique_ptr<ExpertSlots> expert_slots(const Placement& placement, Communicator& comm,
                                            int spares, int threads = 1) const;
  // The sizes that these would have, also of an outline; the weights hold the experts (kShared).
  ExpertSlots::Sizes expert_slots_sizes(const Placement& placement, Communicator& comm,
                                        int spares) const;

  const ModelConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }
  // The format of attention, dense layers and the output head.
  WeightFormat linear_format() const { return head_.weight_format(); }
  // The format of the routed experts.
  WeightFormat expert_format() const { return expert_format_; }
  int expert_parts() const { return expert_parts_; }
  bool is_outline() const { return outline_; }
  size_t bytes() const { return bytes_by_use().total(); }  // size of the packed weights
  WeightBytes bytes_by_use() const;
  // The part of it that these ranks need: what load() for them alone would give.
  size_t bytes_of(const Placement& placement, std::span<const int> ranks) const;
  size_t expert_bytes() const;  // size of one routed expert; 0 where none is packed

 private:
  friend class Decoder;
  DecoderWeights(const SafeTensors& tensors, const ModelConfig& config, DType dtype,
                 WeightFormat expert_format);
  // The layers, embedding and head.
  void read(LayerSource& source, const Placement& placement, const LoadOptions& options,
            LoadProgress& progress);

  ModelConfig config_;
  DType dtype_;
  WeightFormat expert_format_;
  int expert_parts_ = 1;
  bool outline_ = false;
  SafeTensors tensors_;  // keeps embedding_ mapped
  TensorView embedding_;
  std::vector<LayerWeights> layers_;
  std::vector<float> final_norm_;
  Linear head_;
};

// The keys and values of one sequence. Only one thread (with its team) may use it at a time.
class KvCache {
 public:
  // capacity: the most positions the sequence may get; rounded up to 32 of them, memory is real
  // only where they have been through step(). With kBF16 and kI8 keys and values are rounded as
  // they are stored, a position at a time: a token's bits still depend on its own sequence alone.
  KvCache(const ModelConfig& config, int64_t capacity, KvFormat format = KvFormat::kF32);

  int64_t length() const { return length_; }  // positions that have been through step()
  int64_t capacity() const { return capacity_; }
  KvFormat format() const { return format_; }
  size_t bytes() const { return data_.bytes(); }
  // The memory that a cache takes, in all layers together, and that of each of its positions.
  static size_t bytes(const ModelConfig& config, int64_t capacity, KvFormat format);
  static size_t bytes_per_position(const ModelConfig& config, KvFormat format);

  // Forgets the positions from `length` on, so that other tokens can take their places. Throws
  // InvalidArgument where there are not so many.
  void truncate(int64_t length);
  // The same sequence once more, with memory of its own.
  KvCache copy() const;

 private:
  friend class Decoder;
  KvCache(const KvCache& like, Buffer data);
  KvHead head(int layer, int head) const;

  int64_t capacity_;
  int64_t length_ = 0;
  KvFormat format_;
  int num_layers_;
  int num_heads_;
  int head_dim_;
  Buffer data_;  // [layers, key-value heads], each a KvHead
};

// The next tokens of one sequence.
struct Chunk {
  enum class Logits { kNone, kLast, kAll };

  KvCache* cache = nullptr;
  std::span<const int32_t> tokens;
  Logits logits = Logits::kNone;  // the tokens whose logits are wanted
  // [tokens, MoE layers, top_k] or empty: receives the experts that the routers picked.
  std::span<int32_t> routes = {};
  // The same shape, or empty: picks of another run, to be taken instead (see RouteInputs::picks).
  std::span<const int32_t> replay = {};
};

struct DecoderOptions {
  // A name that make_dispatcher() knows, or "auto", which lets choose_dispatcher() choose.
  std::string dispatcher = "auto";
  // None: each rank has sequences of its own, and whole experts are spread over all ranks. Where
  // ranks have the same sequences, all of them must make the same step() calls and get the same
  // results. Layouts that sum parts take the dispatcher "auto" and the rule kStatic only.
  std::optional<ParallelLayout> layout = std::nullopt;
  // The most tokens of this rank in one step; the same on every rank. Memory is reserved for it.
  int max_tokens = 256;
  // The rows that a rank's experts get at once, at most, over those that they get in a full step
  // when loads are level (row_budget_of()); the same on every rank. Memory is reserved for so many,
  // and steps that bring more take more rounds. 0: all rows that there can be.
  double row_budget = kRowBudget;
  // The type in which rows travel to the experts' ranks and results back: F32, BF16, I8 or F8_E4M3
  // (a scale for 32 elements, which hidden must be a multiple of); the same on every rank. None:
  // rows as the experts take them, results in F32. With another type than F32 results must be sent
  // (DispatcherKind::sends_results), and every row is rounded, also where it stays on its rank.
  std::optional<DType> wire = std::nullopt;
  // Compute threads of this rank, the caller's included.
  int threads = 1;
  // The rule that says which replica a pick goes to; the same on every rank.
  SplitRule split = SplitRule::kStatic;
  // What an expert costs, for the rule kTime; the same on every rank.
  std::shared_ptr<const CostModel> cost = {};
  // Above 0: rank 0 measures what its experts cost for about so long, and all ranks take what it
  // found. For the rule kTime, in place of `cost`.
  double measure_cost_seconds = 0;
  // Profile runs only: every token goes to random experts, as level as chance has it, instead of
  // those that the router picks (RouterConfig::force_balance); the same on every rank. Such steps
  // are no load, and take no recorder.
  bool force_balance = false;
  // Each MoE layer takes the tokens of a step as two microbatches that hide each other's waits,
  // where every rank has at least 2 tokens, on which ranks agree once a step; the same on every
  // rank. The results have the same bits. The second microbatch has memory of its own.
  bool overlap = false;
  // Gets what the thread that calls step() does; outlives the decoder. Null: nothing is recorded.
  TraceBuffer* trace = nullptr;
};

// One rank's decoder. All ranks of the group make the same number of step() calls.
class Decoder {
 public:
  // slots: this rank's experts, as they are now; with null, weights must hold them. comm: outlives
  // the decoder, and nobody else uses it during step(). The placement may have redundant experts.
  // Throws InvalidArgument when things do not fit, and on all ranks when they differ in what must
  // be the same: the model's sizes and formats, the placement, the dispatcher, max_tokens, the
  // row budget, the split rule and its cost model. Collective.
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

  // Gives one MoE layer another placement, between steps and at the same step on every rank.
  // experts: those of this rank (ExpertSlots::experts); replicas: where the experts of all ranks
  // are. Each rank has as many slots as before. Throws InvalidArgument before anything has changed.
  void replace_layer(int moe_layer, std::shared_ptr<const Experts> experts,
                     std::shared_ptr<const SplitTable> replicas);
  // Gives all MoE layers another cost model, between the same two steps on every rank. Throws
  // InvalidArgument for a model of another number of ranks.
  void replace_cost(const std::shared_ptr<const CostModel>& cost);

  const ModelConfig& config() const { return weights_->config(); }
  // The dispatcher that was chosen or asked for.
  std::string_view dispatcher() const { return dispatcher_->name(); }
  // What the layers share out by, as given, measured or replaced; null: rows.
  const std::shared_ptr<const CostModel>& cost() const { return options_.cost; }
  // The format that the experts of replace_layer() must have.
  Format format() const { return dispatcher_->format(); }
  const DecoderOptions& options() const { return options_; }
  Communicator& comm() { return comm_; }  // of all ranks
  // The memory of the steps: reserved, or of an outline what would be.
  size_t workspace_bytes() const;
  // The steps that were two microbatches.
  int64_t overlapped_steps() const { return overlapped_steps_; }
  // The types in which rows travel to the experts' ranks and results back.
  DType rows_on_wire() const { return dispatcher_->shape().dtype; }
  DType results_on_wire() const { return dispatcher_->shape().results; }
  // What this rank has sent in all steps: rows, results and all else that the steps say.
  SentBytes sent() const { return sent_; }
  const ParallelLayout& layout() const { return layout_; }

 private:
  struct Activations;
  struct SecondLane;  // of the second microbatch
  struct Place;       // where a token stands in its sequence

  std::shared_ptr<const Dispatcher> make_dispatcher(Communicator& comm) const;
  std::vector<MoeLayer> make_moe_layers(Communicator& comm, const ExpertSlots* slots);
  void measure_cost(const Experts& experts, Communicator& comm);
  std::shared_ptr<const Experts> experts_of(const LayerWeights& weights, int rank) const;
  size_t linear_scratch_bytes(int64_t tokens) const;
  size_t needed_workspace() const;
  size_t needed_by_second_lane() const;
  int64_t own_tokens(int64_t tokens) const;
  void check(std::span<const Chunk> batch, Rows logits) const;
  Activations take_activations(int64_t tokens);
  void embed(std::span<const Chunk> batch, const Activations& a) const;
  void attention(const LayerWeights& weights, int layer, const Activations& a);
  void turn_heads(const LayerWeights& weights, const Activations& a);
  void append_to_caches(int layer, const Activations& a);
  int64_t tile_queries(int layer, const Activations& a) const;
  void feed_forward(const LayerWeights& weights, const Activations& a, LoadRecorder* recorder);
  void moe(const LayerWeights& weights, const Activations& a, LoadRecorder* recorder);
  void gather_tokens(Rows slice, const Activations& a);
  void gather_routes(int moe_layer, std::span<const int32_t> slice);
  int64_t max_layer_tokens() const;
  int64_t first_forced_token() const;
  SentBytes sent_so_far() const;
  void head(std::span<const Chunk> batch, const Activations& a, Rows logits);
  std::span<const int32_t> replayed_picks(int moe_layer);
  void keep_routes(int moe_layer, int64_t first, std::span<const int32_t> ids) const;
  void forward(const MoeLayer& layer, ConstRows x, Rows out, const ForwardOptions& options);
  ConstRows linear_input(Rows x, const Activations& a);

  std::shared_ptr<const DecoderWeights> weights_;
  DecoderOptions options_;
  Placement placement_;
  ParallelLayout layout_;
  Communicator& comm_;
  LayoutGroups layout_groups_;
  Communicator& experts_comm_;              // of the lane
  std::vector<float> inverse_frequencies_;  // [head_dim / 2], for the rotary embedding
  float rope_scale_ = 1.0F;                 // multiplies its sines and cosines
  std::shared_ptr<const Dispatcher> dispatcher_;
  std::vector<MoeLayer> moe_layers_;
  std::unique_ptr<const Attention> attention_;
  Team team_;
  size_t workspace_bytes_;
  Workspace workspace_;
  std::vector<std::unique_ptr<Communicator>> owned_groups_;
  std::vector<Communicator*> groups_;
  Lane lane_;
  std::span<const Chunk> batch_;             // of the step that is running
  std::unique_ptr<SecondLane> second_lane_;  // null without DecoderOptions::overlap
  bool in_halves_ = false;                   // whether the step that is running is overlapped
  SentBytes sent_;
  int64_t steps_ = 0, overlapped_steps_ = 0;
  int64_t first_routed_ = 0;         // ForwardOptions::first_token of the call that is running
  Capture capture_;                  // keep_routes()
  std::span<int32_t> slice_routes_;  // of this rank's slice of the tokens, where they are cut
};

}  // namespace trimtab
