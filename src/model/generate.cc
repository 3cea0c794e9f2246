// SPDX-License-Identifier: Apache-2.0
#include "trimtab/generate.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <list>
#include <map>

#include "base/cat.h"
#include "model/decoder_math.h"
#include "model/sampler.h"
#include "trimtab/error.h"
#include "trimtab/table.h"

namespace trimtab {

namespace {

struct Sequence {
  int64_t prompt;
  std::vector<int32_t> tokens;  // the prompt and what came after
  KvCache cache;

  int64_t pending() const { return std::ssize(tokens) - cache.length(); }
};

int64_t max_positions(const ModelConfig& config) {
  return config.max_position_embeddings > 0 ? config.max_position_embeddings
                                            : std::numeric_limits<int64_t>::max();
}

// How many tokens may follow the prompt: the last one stands behind the last position and is never
// fed.
int64_t max_new(const ModelConfig& config, const std::vector<int32_t>& prompt, int max_new_tokens) {
  return std::min<int64_t>(max_new_tokens, max_positions(config) - std::ssize(prompt) + 1);
}

// The positions of a sequence: all but the last new token go through the decoder.
int64_t max_length(const ModelConfig& config, const std::vector<int32_t>& prompt,
                   int max_new_tokens) {
  return std::ssize(prompt) + max_new(config, prompt, max_new_tokens) - 1;
}

// In all MoE layers.
size_t picks_of_token(const ModelConfig& config) {
  return cells(num_moe_layers(config), config.router.top_k);
}

void check(const ModelConfig& config, std::span<const std::vector<int32_t>> prompts,
           const GenerateOptions& options, size_t results) {
  if (results != prompts.size())
    throw InvalidArgument(cat(results, " results for ", prompts.size(), " prompts"));
  if (options.max_new_tokens < 1) {
    throw InvalidArgument(cat("max_new_tokens must be at least 1, not ", options.max_new_tokens));
  }
  if (options.max_sequences < 0) {
    throw InvalidArgument(cat("max_sequences must be 0 or more, not ", options.max_sequences));
  }
  check(options.sampling);
  if (std::ranges::any_of(options.stops, [](const auto& stop) { return stop.empty(); }))
    throw InvalidArgument("a stop has no token");
  if (!options.replay.empty() && options.replay.size() != prompts.size()) {
    throw InvalidArgument(
        cat("routes of ", options.replay.size(), " prompts to be replayed for ", prompts.size()));
  }
  for (size_t i = 0; i < options.replay.size(); ++i) {
    if (options.replay[i].size() % picks_of_token(config) != 0) {
      throw InvalidArgument(cat("prompt ", i + 1, ": routes of ", options.replay[i].size(),
                                " picks; a token has ", picks_of_token(config)));
    }
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) throw InvalidArgument(cat("prompt ", i + 1, " is empty"));
    if (std::ssize(prompts[i]) > max_positions(config)) {
      throw InvalidArgument(cat("prompt ", i + 1, " has ", prompts[i].size(),
                                " tokens, max_position_embeddings is ",
                                config.max_position_embeddings));
    }
    for (const int32_t id : prompts[i]) {
      if (id < 0 || id >= config.vocab_size) {
        throw InvalidArgument(cat("prompt ", i + 1, " has token id ", id,
                                  ", the vocabulary ends at ", config.vocab_size - 1));
      }
    }
  }
}

// One rank's prompts on their way through the decoder.
class Scheduler {
 public:
  Scheduler(Decoder& decoder, std::span<const std::vector<int32_t>> prompts,
            const GenerateOptions& options, std::span<Generation> results)
      : decoder_(decoder),
        prompts_(prompts),
        options_(options),
        results_(results),
        all_(ranks()),
        sizes_(ranks()),
        statuses_(ranks()) {
    for (int64_t i = group(); i < std::ssize(prompts); i += groups()) {
      results[i] = {};
      ++unfinished_;
    }
    next_prompt_ = group();
    const SequenceMemory most = max_generate_memory(
        decoder.config(), prompts, options, decoder.options().max_tokens, group(), groups());
    logits_.reserve(most.logits / sizeof(float));
  }

  SequenceMemory memory() const { return {most_kv_, logits_.capacity() * sizeof(float)}; }

  // Chooses the next batch and agrees with the other ranks on what it is: collective. Returns what
  // all ranks have done so far and have to do.
  GenerateProgress agree(uint64_t status, bool interrupted) {
    batch_ = next_batch();
    TraceSteps trace(decoder_.options().trace);
    const Message mine = {new_tokens_,    decode_tokens_, unfinished_,
                          runs_prompts(), interrupted,    status};
    Pending pending = decoder_.comm().all_gather_v(std::as_bytes(std::span(&mine, 1)),
                                                   std::as_writable_bytes(std::span(all_)), sizes_);
    pending.wait();
    pending.wait_released();
    trace.step("agreement");
    add_time();
    GenerateProgress total = {.steps = steps_,
                              .prompt_seconds = seconds_[Phase::kPrefill],
                              .decode_seconds = seconds_[Phase::kDecode]};
    phase_ = Phase::kDecode;
    interrupted_ = false;
    for (int r = 0; r < ranks(); ++r) {
      if (decoder_.layout().leads(r)) {
        total.new_tokens += all_[r].new_tokens;
        total.decode_tokens += all_[r].decode_tokens;
        total.unfinished_prompts += all_[r].unfinished;
      }
      if (all_[r].runs_prompts != 0) phase_ = Phase::kPrefill;
      if (all_[r].interrupted != 0) interrupted_ = true;
      statuses_[r] = all_[r].status;
    }
    return total;
  }

  // As of the last agreement. Where it is true the caller makes no more steps.
  bool interrupted() const { return interrupted_; }

  // What has not ended keeps what it has.
  void give_up() {
    for (const Sequence& sequence : running_)
      results_[sequence.prompt].finish = Finish::kInterrupted;
    for (; next_prompt_ < std::ssize(prompts_); next_prompt_ += groups())
      results_[next_prompt_].finish = Finish::kInterrupted;
  }

  void step(StepObserver* observer) {
    const int64_t wanted = std::count_if(batch_.begin(), batch_.end(), [](const Chunk& chunk) {
      return chunk.logits == Chunk::Logits::kLast;
    });
    const int64_t vocab = decoder_.config().vocab_size;
    logits_.resize(cells(wanted, vocab));
    LoadRecorder* recorder =
        observer ? observer->before_step({steps_, phase_, statuses_, batch_}) : nullptr;
    TokenRecorder* tokens = observer ? observer->tokens() : nullptr;
    if (tokens != nullptr) want_routes();
    decoder_.step(batch_, Rows(logits_.data(), wanted, vocab), recorder);
    if (tokens != nullptr) record(*tokens);
    if (observer) observer->after_step();
    ++steps_;

    TraceSteps trace(decoder_.options().trace);
    std::span<const float> logits = logits_;
    for (auto it = running_.begin(); it != running_.end();) {
      bool ended = false;
      if (it->pending() == 0) {
        ended = append(*it, logits.first(vocab));
        if (options_.grown) options_.grown(it->prompt, results_[it->prompt], ended);
        logits = logits.subspan(vocab);
      }
      it = ended ? running_.erase(it) : std::next(it);
    }
    trace.step("sampling");
  }

 private:
  // What a rank tells the others before a step.
  struct Message {
    int64_t new_tokens, decode_tokens, unfinished, runs_prompts, interrupted;
    uint64_t status;  // of the observer
  };

  int ranks() const { return decoder_.comm().size(); }
  // Of the ranks that have the same sequences.
  int64_t group() const { return decoder_.layout().dp_rank(decoder_.comm().rank()); }
  int64_t groups() const { return decoder_.layout().dp; }

  // Older sequences first: those that decode take one token each, and a new prompt starts only when
  // all before it are through with theirs. Hence every running sequence gets at least one token in
  // each step.
  std::vector<Chunk> next_batch() {
    int64_t budget = decoder_.options().max_tokens;
    std::vector<Chunk> batch;
    padded_.clear();
    const auto take = [&](Sequence& sequence) {
      const int64_t n = std::min(sequence.pending(), budget);
      const std::span<const int32_t> tokens = sequence.tokens;
      batch.push_back({&sequence.cache, tokens.last(sequence.pending()).first(n),
                       n == sequence.pending() ? Chunk::Logits::kLast : Chunk::Logits::kNone});
      add_routes(sequence, batch.back());
      budget -= n;
    };
    for (Sequence& sequence : running_) take(sequence);
    const auto has_place = [&] {
      return options_.max_sequences == 0 || std::ssize(running_) < options_.max_sequences;
    };
    for (; budget > 0 && has_place() && next_prompt_ < std::ssize(prompts_);
         next_prompt_ += groups()) {
      const std::vector<int32_t>& prompt = prompts_[next_prompt_];
      const int64_t length = max_length(decoder_.config(), prompt, options_.max_new_tokens);
      running_.push_back({next_prompt_, prompt, KvCache(decoder_.config(), length, options_.kv)});
      take(running_.back());
    }
    size_t kv = 0;
    for (const Sequence& sequence : running_) kv += sequence.cache.bytes();
    most_kv_ = std::max(most_kv_, kv);
    return batch;
  }

  // Where the routes of the chunk's tokens go, and where they come from.
  void add_routes(const Sequence& sequence, Chunk& chunk) {
    const size_t picks = picks_of_token(decoder_.config());
    const size_t first = cells(sequence.cache.length(), picks), count = chunk.tokens.size() * picks;
    if (options_.keep_routes) {
      std::vector<int32_t>& routes = results_[sequence.prompt].routes;
      routes.resize(std::max(routes.size(), first + count));
      chunk.routes = std::span(routes).subspan(first, count);
    }
    if (options_.replay.empty()) return;
    const std::vector<int32_t>& replay = options_.replay[sequence.prompt];
    if (first >= replay.size()) return;
    if (first + count <= replay.size()) {
      chunk.replay = std::span(replay).subspan(first, count);
      return;
    }
    // The routes end within the chunk.
    padded_.emplace_back(count, -1);
    std::copy(replay.begin() + static_cast<int64_t>(first), replay.end(), padded_.back().begin());
    chunk.replay = padded_.back();
  }

  // Lets the chunks that keep no routes of their own write them where record() finds them.
  void want_routes() {
    const size_t picks = picks_of_token(decoder_.config());
    size_t most = 0;
    for (const Chunk& chunk : batch_) most += chunk.tokens.size() * picks;
    routes_.resize(most);
    std::span<int32_t> free = routes_;
    for (Chunk& chunk : batch_) {
      if (!chunk.routes.empty()) continue;
      chunk.routes = free.first(chunk.tokens.size() * picks);
      free = free.subspan(chunk.routes.size());
    }
  }
  void record(TokenRecorder& tokens) const {
    const auto picks = static_cast<int64_t>(picks_of_token(decoder_.config()));
    for (const Chunk& chunk : batch_) {
      const Table<const int32_t> of_tokens(std::span<const int32_t>(chunk.routes), picks);
      for (int64_t t = 0; t < of_tokens.rows(); ++t) tokens.add(of_tokens[t]);
    }
  }

  // A sequence whose newest token alone is to come decodes; the one that has a last token of a
  // prompt to come does not.
  bool runs_prompts() const {
    return std::any_of(running_.begin(), running_.end(), [this](const Sequence& sequence) {
      return sequence.cache.length() < std::ssize(prompts_[sequence.prompt]);
    });
  }

  // Adds the next token to a sequence. True when the sequence ends.
  bool append(Sequence& sequence, std::span<const float> logits) {
    Generation& result = results_[sequence.prompt];
    if (!all_finite(logits)) {
      result.finish = Finish::kNotFinite;
      --unfinished_;
      return true;
    }
    const int32_t id = options_.sampling.temperature > 0.0F
                           ? sample(logits, options_.sampling, options_.seed, sequence.prompt,
                                    sequence.tokens.size())
                           : most_likely(logits);
    result.token_ids.push_back(id);
    sequence.tokens.push_back(id);
    ++new_tokens_;
    if (phase_ == Phase::kDecode) ++decode_tokens_;

    const auto& ends = decoder_.config().eos_token_ids;
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) {
      result.finish = Finish::kEndToken;
    } else if (ends_with_stop(result.token_ids)) {
      result.finish = Finish::kStop;
    } else if (std::ssize(result.token_ids) >= options_.max_new_tokens) {
      result.finish = Finish::kMaxNewTokens;
    } else if (std::ssize(sequence.tokens) > max_positions(decoder_.config())) {
      result.finish = Finish::kContextFull;
    } else {
      return false;
    }
    --unfinished_;
    return true;
  }

  bool ends_with_stop(std::span<const int32_t> tokens) const {
    return std::ranges::any_of(options_.stops, [&](const std::vector<int32_t>& stop) {
      return stop.size() <= tokens.size() && std::ranges::equal(tokens.last(stop.size()), stop);
    });
  }

  // The time since the last agreement belongs to the step that was made since.
  void add_time() {
    const auto now = std::chrono::steady_clock::now();
    if (steps_ > 0) seconds_[phase_] += std::chrono::duration<double>(now - agreed_).count();
    agreed_ = now;
  }

  Decoder& decoder_;
  std::span<const std::vector<int32_t>> prompts_;
  const GenerateOptions& options_;
  std::span<Generation> results_;
  std::list<Sequence> running_;
  std::vector<Chunk> batch_;
  std::list<std::vector<int32_t>> padded_;  // of the batch: routes that end within a chunk
  std::vector<int32_t> routes_;             // of the batch, for the observer's recorder
  std::vector<float> logits_;
  size_t most_kv_ = 0;
  std::vector<Message> all_;  // [ranks]
  std::vector<int64_t> sizes_;
  std::vector<uint64_t> statuses_;
  Phase phase_ = Phase::kDecode;
  std::map<Phase, double> seconds_;  // of the steps of a phase
  std::chrono::steady_clock::time_point agreed_;
  bool interrupted_ = false;
  int64_t next_prompt_ = 0;
  int64_t steps_ = 0, new_tokens_ = 0, decode_tokens_ = 0, unfinished_ = 0;
};

}  // namespace

SequenceMemory generate(Decoder& decoder, std::span<const std::vector<int32_t>> prompts,
                        const GenerateOptions& options, std::span<Generation> results,
                        StepObserver* observer) {
  check(decoder.config(), prompts, options, results.size());
  // Of ranks with the same results only the first one writes them.
  std::vector<Generation> unheard;
  GenerateOptions own = options;
  if (!decoder.layout().leads(decoder.comm().rank())) {
    unheard.resize(results.size());
    results = unheard;
    own.grown = {};
  }
  Scheduler scheduler(decoder, prompts, own, results);
  for (;;) {
    const GenerateProgress progress =
        scheduler.agree(observer ? observer->status() : 0, own.interrupted && own.interrupted());
    if (own.progress) own.progress(progress);
    if (progress.unfinished_prompts == 0) return scheduler.memory();
    if (scheduler.interrupted()) {
      scheduler.give_up();
      return scheduler.memory();
    }
    scheduler.step(observer);
  }
}

// A step that is full takes max_tokens of the rank's tokens. In one that is not, every running
// sequence gets its next token. Either no prompt waits, which happens at most as often as the
// longest generation has tokens, or max_sequences run, and then that many tokens are made.
int64_t max_generate_steps(const ModelConfig& config, std::span<const std::vector<int32_t>> prompts,
                           const GenerateOptions& options, int max_tokens, int num_ranks) {
  int64_t most = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    int64_t tokens = 0, all_fresh = 0, longest = 0;
    for (int64_t i = rank; i < std::ssize(prompts); i += num_ranks) {
      const int64_t fresh = max_new(config, prompts[i], options.max_new_tokens);
      tokens += std::ssize(prompts[i]) + fresh;
      all_fresh += fresh;
      longest = std::max(longest, fresh);
    }
    if (options.max_sequences > 0) longest += all_fresh / options.max_sequences;
    most = std::max(most, tokens / max_tokens + longest);
  }
  return most;
}

// Which sequences can be in a step together? Each takes at least one token of every step, and one
// begins only when all before it have been read. So while the oldest of them makes its tokens, in
// as many steps as it has some, those between it and the newest are read, with what it leaves of
// the steps.
SequenceMemory max_generate_memory(const ModelConfig& config,
                                   std::span<const std::vector<int32_t>> prompts,
                                   const GenerateOptions& options, int max_tokens, int64_t group,
                                   int64_t num_groups) {
  check(config, prompts, options, prompts.size());
  struct Size {
    int64_t prompt, fresh;
    size_t kv;
  };
  std::vector<Size> sizes;
  for (int64_t i = group; i < std::ssize(prompts); i += num_groups) {
    const int64_t length = max_length(config, prompts[i], options.max_new_tokens);
    sizes.push_back({std::ssize(prompts[i]), max_new(config, prompts[i], options.max_new_tokens),
                     KvCache::bytes(config, length, options.kv)});
  }
  const int limit =
      options.max_sequences > 0 ? std::min(options.max_sequences, max_tokens) : max_tokens;
  SequenceMemory most;
  int64_t most_sequences = 0;
  std::vector<size_t> others;  // a heap of the largest, the least of them on top
  for (auto oldest = sizes.begin(); oldest != sizes.end(); ++oldest) {
    others.clear();
    size_t kv = oldest->kv;
    int64_t room = oldest->fresh * (max_tokens - 1);
    for (auto next = std::next(oldest); limit > 1 && next != sizes.end() && room > 0; ++next) {
      room -= next->prompt;
      kv += next->kv;
      others.push_back(next->kv);
      std::ranges::push_heap(others, std::greater());
      if (std::ssize(others) < limit) continue;
      std::ranges::pop_heap(others, std::greater());
      kv -= others.back();
      others.pop_back();
    }
    most.kv = std::max(most.kv, kv);
    most_sequences = std::max(most_sequences, 1 + std::ssize(others));
  }
  most.logits = cells(most_sequences, config.vocab_size, sizeof(float));
  return most;
}

}  // namespace trimtab
