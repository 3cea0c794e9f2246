// SPDX-License-Identifier: Apache-2.0
// Text from a Decoder: batches of prompts on all ranks, sampling, and the hook by which recording
// and balancing follow the steps.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trimtab/decoder.h"
#include "trimtab/load.h"
#include "trimtab/token_recorder.h"

namespace trimtab {

struct GenerateProgress {
  int64_t steps = 0;               // steps done by now
  int64_t new_tokens = 0;          // new tokens of all ranks
  int64_t unfinished_prompts = 0;  // unfinished prompts of all ranks
  // The steps in which any rank read a prompt, and those in which every sequence took one new
  // token. The tokens are those that these last steps made, on all ranks.
  double prompt_seconds = 0, decode_seconds = 0;
  int64_t decode_tokens = 0;
};

// How the next token is chosen. The filters work on softmax(logits / temperature), one behind the
// other in this order, as those of transformers do; tokens that are level with the last one kept
// are kept too.
struct Sampling {
  float temperature = 0.0F;  // 0: the most likely token, with ties to the lower id
  int top_k = 0;             // keeps the k most likely tokens; 0: all
  float top_p = 1.0F;        // keeps the fewest tokens that have this share of the probability
  float min_p = 0.0F;        // keeps tokens at least this many times as likely as the most likely
};

// What DIRECTORY/generation_config.json says: `temperature`, `top_k`, `top_p` and `min_p`, which
// are off where they are missing or null; temperature is 1 then, and 0 where `do_sample` is not
// true. Throws InvalidArgument where there is no such file, and FormatError for values that can't
// be.
Sampling read_sampling(const std::string& directory);

// kNotFinite: the logits of the next token have a NaN or an infinity, so that no token could be
// chosen. The other sequences of the batch are not touched by it.
enum class Finish { kEndToken, kStop, kMaxNewTokens, kContextFull, kNotFinite, kInterrupted };

struct Generation {
  std::vector<int32_t> token_ids;  // the new tokens, with the end token or the stop behind them
  Finish finish = Finish::kMaxNewTokens;
  // [positions, MoE layers, top_k] the experts of each token that went through the decoder: the
  // prompt's and all new ones but the last. Empty unless asked for.
  std::vector<int32_t> routes;
};

struct GenerateOptions {
  int max_new_tokens = 64;  // per prompt
  // The most sequences of one rank that are in a step together; further prompts wait until one has
  // ended. 0: as many as a step has tokens for.
  int max_sequences = 0;
  // A draw is a function of (seed, prompt, position), so it does not depend on ranks or batches.
  Sampling sampling;
  uint64_t seed = 0;
  // A sequence ends when its new tokens end with one of these, none of which may be empty.
  std::vector<std::vector<int32_t>> stops;
  // How the sequences' keys and values are kept; the same on every rank.
  KvFormat kv = KvFormat::kF32;
  // Keep the experts that the routers pick, in Generation::routes.
  bool keep_routes = false;
  // [prompts] or empty: Generation::routes of another run, which are replayed: those experts are
  // taken. Positions beyond their end are routed.
  std::span<const std::vector<int32_t>> replay = {};
  // Called before each step and at the end; may be set on one rank only.
  std::function<void(const GenerateProgress&)> progress = {};
  // Called when a sequence has a new token, and when it has ended (its last token included), on the
  // rank that has it (of ranks with the same sequences, on the first one): ranks of one process
  // call at the same time. so_far.finish says something once it has ended.
  std::function<void(int64_t prompt, const Generation& so_far, bool ended)> grown = {};
  // Called before each step. Once it is true on any rank, all ranks end: unfinished sequences keep
  // what they have, as kInterrupted.
  std::function<bool()> interrupted = {};
};

// The most memory that the sequences of a rank take at once.
struct SequenceMemory {
  size_t kv = 0;      // their keys and values
  size_t logits = 0;  // of the next tokens
};

// Follows the steps of generate() on one rank, to record or to balance. Every rank has one, or none
// has.
class StepObserver {
 public:
  struct Step {
    int64_t number = 0;
    Phase phase = Phase::kDecode;        // the same on every rank
    std::span<const uint64_t> statuses;  // [ranks] what status() returned on each rank
    std::span<const Chunk> batch = {};   // of this rank, as it goes through the decoder
  };

  virtual ~StepObserver() = default;
  // Returns what the other ranks' observers must know before the next step. It travels with a
  // message that is sent anyway.
  virtual uint64_t status() { return 0; }
  // Returns the recorder for this step's load, with a step open, or null.
  virtual LoadRecorder* before_step(const Step& step) = 0;
  // Returns the recorder that gets the picks of every token of this rank's sequences, or null. The
  // same for the whole run, and null on all ranks or on none.
  virtual TokenRecorder* tokens() { return nullptr; }
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

// Generates text for all prompts together, prompt i on rank i % ranks, or, where ranks have the
// same sequences (DecoderOptions::layout), on all ranks of data-parallel group i % dp: every step
// takes one token of each sequence that is being decoded and fills up with chunks of prompts.
// Collective; prompts and options (except the functions) must be the same on every rank. results:
// [prompts]; each rank writes those of its own prompts, and of ranks with the same sequences the
// first one does, so ranks of one process may share it. Throws InvalidArgument, on every rank and
// before the first step, for prompts that are empty, have ids outside the vocabulary or exceed
// max_position_embeddings. A sequence that reaches max_position_embeddings ends there, and one
// whose numbers overflow or are NaN ends as kNotFinite. Returns what this rank's sequences took.
SequenceMemory generate(Decoder& decoder, std::span<const std::vector<int32_t>> prompts,
                        const GenerateOptions& options, std::span<Generation> results,
                        StepObserver* observer = nullptr);

// The most steps that generate() can take for these prompts, for reserving a LoadRecorder.
// max_tokens: the most tokens of one step. num_ranks: those with sequences of their own.
int64_t max_generate_steps(const ModelConfig& config, std::span<const std::vector<int32_t>> prompts,
                           const GenerateOptions& options, int max_tokens, int num_ranks);

// The most memory that generate() can take for the sequences of data-parallel group `group` of
// `num_groups`, whenever they end; where each rank has sequences of its own, ranks are the groups.
// It is what generate() takes where none ends early and all are in a step together. Throws
// InvalidArgument as generate().
SequenceMemory max_generate_memory(const ModelConfig& config,
                                   std::span<const std::vector<int32_t>> prompts,
                                   const GenerateOptions& options, int max_tokens, int64_t group,
                                   int64_t num_groups);

}  // namespace trimtab
