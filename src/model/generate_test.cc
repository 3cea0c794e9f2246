// SPDX-License-Identifier: Apache-2.0
#include "trimtab/generate.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <set>

#include "model/decoder_testing.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

struct Result {
  std::vector<Generation> generations;
  Load load;
};

Result generate_all(const Model& model, const std::vector<Ids>& prompts, const GenerateOptions& how,
                    const Arrangement& arrangement = {}) {
  const Placement placement = linear_placement(model.config, arrangement.ranks);
  const auto weights =
      DecoderWeights::load(model.tensors, model.config, arrangement.dtype, placement);
  Result result;
  result.generations.resize(prompts.size());
  const int64_t max_steps = max_generate_steps(model.config, prompts, how,
                                               arrangement.options.max_tokens, arrangement.ranks);
  std::vector<LoadRecorder> recorders;
  for (int rank = 0; rank < arrangement.ranks; ++rank) {
    recorders.emplace_back(placement.num_layers(), placement.slots_of_rank(rank), max_steps);
  }
  run_ranks(arrangement.ranks, [&](Communicator& comm) {
    Decoder decoder(weights, placement, comm, arrangement.options);
    StepRecorder recorder(recorders[comm.rank()]);
    generate(decoder, prompts, how, result.generations, &recorder);
  });
  std::vector<const LoadRecorder*> all;
  for (const LoadRecorder& recorder : recorders) all.push_back(&recorder);
  result.load = merge_loads(placement, all);
  return result;
}

std::vector<Ids> token_ids(const Result& result) {
  std::vector<Ids> ids;
  for (const Generation& generation : result.generations) ids.push_back(generation.token_ids);
  return ids;
}

// Without end tokens every sequence gets its full length.
Model endless_model() {
  Model model = open_model("qwen3_moe");
  model.config.eos_token_ids.clear();
  return model;
}

// A model whose embedding of one token has a value that is no number to compute with.
Model model_with_lost_token(const std::string& folder, int32_t token, float value) {
  Model model = open_model("mixtral");  // its head has weights of its own
  model.config.eos_token_ids.clear();
  const std::string file = folder + "/model.safetensors";
  std::filesystem::copy_file(model.tensors.path(), file);
  const std::string name = "model.embed_tokens.weight";
  const TensorView& embedding = model.tensors.at(name);
  EXPECT_EQ(embedding.dtype, DType::kF32);
  // The tensor's data stand in the copy where they stand in the file: bytes before its end.
  int64_t behind = 0;
  for (const std::string& other : model.tensors.names()) {
    const TensorView& view = model.tensors.at(other);
    if (view.data.data() > embedding.data.data()) behind += std::ssize(view.data);
  }
  std::fstream copy(file, std::ios::in | std::ios::out | std::ios::binary);
  copy.seekp(-behind - std::ssize(embedding.data) + token * model.config.hidden_size * 4 + 4,
             std::ios::end);
  copy.write(reinterpret_cast<const char*>(&value), sizeof value);
  copy.close();
  model.tensors = SafeTensors::open(file);
  return model;
}

TEST(Generate, ASequenceThatIsNotFiniteEndsAloneAndTheOthersGoOn) {
  constexpr int32_t kLost = 3;
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::string folder = (std::filesystem::temp_directory_path() / "generate_XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    const Model model = model_with_lost_token(folder, kLost, value);
    std::filesystem::remove_all(folder);
    const std::vector<Ids> prompts = {{5, 9, 12}, {5, kLost, 12, 7}, {40, 11}, {6}};
    const GenerateOptions how = {.max_new_tokens = 6};
    const auto alone = [&](const Ids& prompt) {
      return generate_all(model, {prompt}, how).generations[0].token_ids;
    };
    for (const int ranks : {1, 2, 3}) {
      for (const char* dispatcher : {"pull", "all_to_all", "packed"}) {
        const Result result =
            generate_all(model, prompts, how,
                         {.ranks = ranks, .options = {.dispatcher = dispatcher, .max_tokens = 4}});
        EXPECT_EQ(result.generations[1].finish, Finish::kNotFinite) << value;
        EXPECT_TRUE(result.generations[1].token_ids.empty());
        for (const int i : {0, 2, 3}) {
          EXPECT_EQ(result.generations[i].finish, Finish::kMaxNewTokens) << i;
          // packed adds partial sums in another order; the text of this model does not change.
          EXPECT_EQ(result.generations[i].token_ids, alone(prompts[i])) << i << dispatcher;
        }
      }
    }
  }
}

TEST(Generate, GreedyTextIsTheArgmaxOfTheLogitsWithoutACache) {
  const Model model = endless_model();
  const auto vocab = static_cast<size_t>(model.config.vocab_size);
  const auto prompts = random_prompts(model.config, {5});
  Ids sequence = prompts[0];
  for (int i = 0; i < 12; ++i) {
    const auto logits = all_logits(model, {sequence}, {})[0];
    const auto last = logits.end() - static_cast<std::ptrdiff_t>(vocab);
    sequence.push_back(static_cast<int32_t>(std::max_element(last, logits.end()) - last));
  }
  const Result result = generate_all(model, prompts, {.max_new_tokens = 12});
  EXPECT_EQ(result.generations[0].token_ids, Ids(sequence.begin() + 5, sequence.end()));
  EXPECT_EQ(result.generations[0].finish, Finish::kMaxNewTokens);
}

TEST(Generate, TextDoesNotDependOnRanksBatchesOrThreads) {
  const Model model = endless_model();
  const auto prompts = random_prompts(model.config, {5, 40, 1, 12, 3, 3});
  for (const float temperature : {0.0F, 1.5F}) {
    const GenerateOptions how = {
        .max_new_tokens = 10, .sampling = {.temperature = temperature}, .seed = 5};
    const auto reference = token_ids(generate_all(model, prompts, how));
    for (const int ranks : {2, 3, 4, 7}) {
      EXPECT_EQ(token_ids(generate_all(model, prompts, how, {.ranks = ranks})), reference)
          << ranks << " ranks";
    }
    GenerateOptions few = how;
    few.max_sequences = 1;
    EXPECT_EQ(token_ids(generate_all(model, prompts, few, {.ranks = 2})), reference)
        << "one sequence at a time";
    // Prompts longer than a step, and more sequences than a step has tokens.
    for (const int max_tokens : {1, 4, 7}) {
      const Arrangement arrangement = {.ranks = 2,
                                       .options = {.max_tokens = max_tokens, .threads = 2}};
      EXPECT_EQ(token_ids(generate_all(model, prompts, how, arrangement)), reference)
          << max_tokens << " tokens a step";
    }
  }
}

TEST(Generate, RanksWithoutPromptsTakePart) {
  const Model model = endless_model();
  const auto prompts = random_prompts(model.config, {6});
  for (const char* dispatcher : {"pull", "all_gather"}) {
    const Arrangement arrangement = {.ranks = 7, .options = {.dispatcher = dispatcher}};
    EXPECT_EQ(generate_all(model, prompts, {.max_new_tokens = 3}, arrangement)
                  .generations[0]
                  .token_ids.size(),
              3U);
    const Result nothing = generate_all(model, {}, {.max_new_tokens = 3}, arrangement);
    EXPECT_TRUE(nothing.generations.empty());
    EXPECT_EQ(nothing.load.num_steps, 0);
  }
}

TEST(Generate, SamplingFollowsTheSeed) {
  const Model model = endless_model();
  const auto prompts = std::vector<Ids>(4, random_prompts(model.config, {6})[0]);
  const auto draw = [&](uint64_t seed) {
    return token_ids(generate_all(
        model, prompts, {.max_new_tokens = 16, .sampling = {.temperature = 1.0F}, .seed = seed}));
  };
  const auto first = draw(1);
  EXPECT_EQ(draw(1), first);
  EXPECT_NE(draw(2), first);
  EXPECT_EQ(std::set<Ids>(first.begin(), first.end()).size(), 4U)
      << "equal prompts should not get equal draws";
}

TEST(Generate, EndTokensEndASequence) {
  Model model = endless_model();
  const auto prompts = random_prompts(model.config, {5, 9});
  const GenerateOptions how = {.max_new_tokens = 12};
  const auto full = token_ids(generate_all(model, prompts, how));
  const int32_t end = full[0][4];
  model.config.eos_token_ids = {end};
  const Result result = generate_all(model, prompts, how, {.ranks = 2});
  for (size_t i = 0; i < 2; ++i) {
    const auto at = std::find(full[i].begin(), full[i].end(), end);
    const bool ends = at != full[i].end();
    EXPECT_EQ(result.generations[i].token_ids, Ids(full[i].begin(), ends ? at + 1 : at));
    EXPECT_EQ(result.generations[i].finish, ends ? Finish::kEndToken : Finish::kMaxNewTokens);
  }
}

TEST(Generate, StopsEndASequence) {
  const Model model = endless_model();
  const auto prompts = random_prompts(model.config, {5, 9, 4});
  GenerateOptions how = {.max_new_tokens = 12};
  const auto full = token_ids(generate_all(model, prompts, how));
  how.stops = {{63, 62, 61, 60, 59, 58, 57}, {full[0][4], full[0][5]}, {full[1][0]}};
  const Result result = generate_all(model, prompts, how, {.ranks = 2});
  for (size_t i = 0; i < prompts.size(); ++i) {
    size_t length = 1;  // of the shortest beginning that ends with a stop
    const auto is_stopped = [&] {
      return std::ranges::any_of(how.stops, [&](const Ids& stop) {
        return length >= stop.size() &&
               Ids(full[i].begin() + static_cast<int64_t>(length - stop.size()),
                   full[i].begin() + static_cast<int64_t>(length)) == stop;
      });
    };
    while (length < full[i].size() && !is_stopped()) ++length;
    EXPECT_EQ(result.generations[i].token_ids,
              Ids(full[i].begin(), full[i].begin() + static_cast<int64_t>(length)));
    EXPECT_EQ(result.generations[i].finish, is_stopped() ? Finish::kStop : Finish::kMaxNewTokens);
  }
  EXPECT_EQ(result.generations[0].finish, Finish::kStop);
  EXPECT_EQ(result.generations[1].token_ids.size(), 1U);
}

TEST(Generate, TellsEachTokenAsItComes) {
  const Model model = endless_model();
  const auto prompts = random_prompts(model.config, {5, 9, 4});
  std::vector<std::vector<Ids>> told(prompts.size());
  GenerateOptions how = {.max_new_tokens = 3};
  how.grown = [&](int64_t prompt, const Generation& so_far, bool ended) {
    told[prompt].push_back(so_far.token_ids);
    EXPECT_EQ(ended, so_far.token_ids.size() == 3);
  };
  const std::vector<Ids> all = token_ids(generate_all(model, prompts, how, {.ranks = 2}));
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Ids& ids = all[i];
    EXPECT_EQ(told[i], (std::vector<Ids>{{ids[0]}, {ids[0], ids[1]}, ids}));
  }
}

// One rank is asked to end: all do, after the same step, and keep what they have.
TEST(Generate, AnInterruptedRunKeepsWhatThereIs) {
  const Model model = endless_model();
  const auto prompts = random_prompts(model.config, {5, 9, 4, 6, 3});
  GenerateOptions how = {.max_new_tokens = 12, .max_sequences = 2};
  const auto full = token_ids(generate_all(model, prompts, how));
  for (const int ranks : {1, 2, 3}) {
    std::atomic<int> tokens = 0;  // of prompt 2, on the last rank or the only one
    how.grown = [&](int64_t prompt, const Generation&, bool) { tokens += prompt == 1 ? 1 : 0; };
    how.interrupted = [&] { return tokens == 3; };
    const Result result = generate_all(model, prompts, how, {.ranks = ranks});
    for (size_t i = 0; i < prompts.size(); ++i) {
      const Ids& ids = result.generations[i].token_ids;
      EXPECT_EQ(result.generations[i].finish, Finish::kInterrupted) << i;
      EXPECT_EQ(ids, Ids(full[i].begin(), full[i].begin() + std::ssize(ids))) << i;
    }
    EXPECT_EQ(result.generations[1].token_ids.size(), 3U);
    EXPECT_EQ(result.generations[4].token_ids.empty(), ranks != 3);  // else it never began
  }
}

TEST(Generate, TheTimesOfPromptsAndOfDecodingAreApart) {
  const Model model = endless_model();
  const auto prompts = random_prompts(model.config, {30, 9, 2});
  GenerateProgress last;
  GenerateOptions how = {.max_new_tokens = 6};
  how.progress = [&](const GenerateProgress& progress) { last = progress; };
  // Prompt 1 takes four steps; the others' first tokens come in the first two of them.
  const Result result =
      generate_all(model, prompts, how, {.ranks = 1, .options = {.max_tokens = 8}});
  EXPECT_GT(last.prompt_seconds, 0);
  EXPECT_GT(last.decode_seconds, 0);
  EXPECT_EQ(last.new_tokens, 18);
  EXPECT_GT(last.decode_tokens, 0);
  EXPECT_LT(last.decode_tokens, 16);
}

TEST(Generate, EndsWhereTheModelsPositionsEnd) {
  Model model = endless_model();
  model.config.max_position_embeddings = 10;
  const auto prompts = random_prompts(model.config, {10, 8, 3});
  const Result result = generate_all(model, prompts, {.max_new_tokens = 5}, {.ranks = 2});
  const auto finish = [&](size_t i) { return result.generations[i].finish; };
  EXPECT_EQ(result.generations[0].token_ids.size(),
            1U);  // the last position still says what comes next
  EXPECT_EQ(result.generations[1].token_ids.size(), 3U);
  EXPECT_EQ(result.generations[2].token_ids.size(), 5U);
  EXPECT_EQ(finish(0), Finish::kContextFull);
  EXPECT_EQ(finish(1), Finish::kContextFull);
  EXPECT_EQ(finish(2), Finish::kMaxNewTokens);
}

TEST(Generate, RecordsEveryPickOfEveryTokenOnce) {
  const Model model = endless_model();
  const auto prompts = random_prompts(model.config, {5, 11, 2});
  const Result one = generate_all(model, prompts, {.max_new_tokens = 4});
  // All prompts fit in the first step; the last new tokens are not fed any more.
  ASSERT_EQ(one.load.num_steps, 4);
  for (int64_t step = 0; step < 4; ++step) {
    for (int layer = 0; layer < 2; ++layer) {
      const auto counts = one.load.at(step, layer);
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}),
                (step == 0 ? 18 : 3) * 4);
    }
  }
  EXPECT_EQ(generate_all(model, prompts, {.max_new_tokens = 4}, {.ranks = 3}).load.counts,
            one.load.counts);
}

TEST(Generate, TellsItsProgress) {
  const Model model = endless_model();
  const auto prompts = random_prompts(model.config, {5, 11, 2});
  std::vector<std::vector<int64_t>> seen;
  GenerateOptions how = {.max_new_tokens = 2};
  how.progress = [&](const GenerateProgress& p) {
    seen.push_back({p.steps, p.new_tokens, p.unfinished_prompts});
  };
  generate_all(model, prompts, how);
  EXPECT_EQ(seen, (std::vector<std::vector<int64_t>>{{0, 0, 3}, {1, 3, 3}, {2, 6, 0}}));
}

// What sequences take is foretold where all are together, and never more than that.
TEST(Generate, TheMemoryOfSequencesIsForetold) {
  const Model endless = endless_model(), ending = open_model("qwen3_moe");
  const std::vector<Ids> prompts =
      random_prompts(endless.config, {3, 17, 1, 30, 2, 9, 25, 4, 4, 60, 1, 12});
  for (const Model* model : {&endless, &ending}) {
    for (const int max_sequences : {0, 1, 3}) {
      for (const int max_tokens : {1, 4, 32, 400}) {
        for (const KvFormat kv : {KvFormat::kF32, KvFormat::kI8}) {
          SCOPED_TRACE(std::to_string(max_sequences) + " sequences, " + std::to_string(max_tokens) +
                       " tokens");
          const GenerateOptions how{.max_new_tokens = 5, .max_sequences = max_sequences, .kv = kv};
          const Placement placement = linear_placement(model->config, 2);
          const auto weights =
              DecoderWeights::load(model->tensors, model->config, DType::kF32, placement);
          std::vector<Generation> results(prompts.size());
          run_ranks(2, [&](Communicator& comm) {
            Decoder decoder(weights, placement, comm, {.max_tokens = max_tokens});
            const SequenceMemory taken = generate(decoder, prompts, how, results);
            const SequenceMemory most =
                max_generate_memory(model->config, prompts, how, max_tokens, comm.rank(), 2);
            EXPECT_LE(taken.kv, most.kv);
            EXPECT_EQ(taken.logits, most.logits);
            const bool together = max_sequences == 0 && max_tokens == 400;
            if (together && model == &endless) {
              EXPECT_EQ(taken.kv, most.kv);
            }
            if (max_sequences == 1 || max_tokens == 1) {
              // One at a time: the longest.
              size_t longest = 0;
              for (size_t i = static_cast<size_t>(comm.rank()); i < prompts.size(); i += 2) {
                longest = std::max(longest,
                                   KvCache::bytes(model->config, std::ssize(prompts[i]) + 4, kv));
              }
              EXPECT_EQ(most.kv, longest);
              EXPECT_EQ(taken.kv, longest);
            }
          });
        }
      }
    }
  }
}

TEST(Generate, RefusesBadPromptsOnEveryRank) {
  const Model model = endless_model();
  const auto refusal = [&](const std::vector<Ids>& prompts,
                           const GenerateOptions& how = {}) -> std::string {
    try {
      generate_all(model, prompts, how, {.ranks = 2});
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_EQ(refusal({{1}, {}}), "prompt 2 is empty");
  EXPECT_EQ(refusal({{1}, {64}}), "prompt 2 has token id 64, the vocabulary ends at 63");
  EXPECT_EQ(refusal({Ids(129, 1)}), "prompt 1 has 129 tokens, max_position_embeddings is 128");
  EXPECT_EQ(refusal({{1}}, {.max_new_tokens = 0}), "max_new_tokens must be at least 1, not 0");
  EXPECT_EQ(refusal({{1}}, {.sampling = {.temperature = -1.0F}}),
            "the temperature must be 0 or more, not -1");
  EXPECT_EQ(refusal({{1}}, {.sampling = {.top_k = -2}}), "top_k must be 0 or more, not -2");
  EXPECT_EQ(refusal({{1}}, {.sampling = {.top_p = 0}}),
            "top_p must be above 0 and at most 1, not 0");
  EXPECT_EQ(refusal({{1}}, {.sampling = {.min_p = 1.5F}}),
            "min_p must be between 0 and 1, not 1.5");
  EXPECT_EQ(refusal({{1}}, {.stops = {{4}, {}}}), "a stop has no token");
}

// R13: routes are kept, position by position, and replayed on any ranks and in any chunks.
TEST(Generate, RoutesAreKeptAndReplayed) {
  const Model model = endless_model();
  const std::vector<Ids> prompts = random_prompts(model.config, {5, 1, 9});
  const int layers = num_moe_layers(model.config), top_k = model.config.router.top_k;
  const auto picks = static_cast<size_t>(layers * top_k);
  GenerateOptions how;
  how.max_new_tokens = 6;
  how.keep_routes = true;
  const Result first = generate_all(model, prompts, how);
  std::vector<std::vector<int32_t>> routes;
  std::vector<int64_t> counts(first.load.num_experts);
  for (size_t i = 0; i < prompts.size(); ++i) {
    routes.push_back(first.generations[i].routes);
    EXPECT_EQ(routes[i].size(), (prompts[i].size() + 5) * picks);
    for (const int32_t id : routes[i]) ++counts.at(static_cast<size_t>(id));
  }
  // They are what the experts got.
  std::vector<int64_t> load(counts.size());
  for (size_t i = 0; i < first.load.counts.size(); ++i)
    load[i % load.size()] += first.load.counts[i];
  EXPECT_EQ(counts, load);

  const Arrangement others{.ranks = 3, .options = {.max_tokens = 4}};
  how.replay = routes;
  for (const size_t left : {routes[2].size(), 7 * picks, size_t{0}}) {  // the rest is routed
    routes[2].resize(left);
    const Result again = generate_all(model, prompts, how, others);
    EXPECT_EQ(token_ids(again), token_ids(first));
    for (size_t i = 0; i < prompts.size(); ++i)
      EXPECT_EQ(again.generations[i].routes, first.generations[i].routes) << "prompt " << i;
  }
  // Experts that no router has picked so.
  for (size_t i = 0; i < prompts.size(); ++i) {
    routes[i].resize(first.generations[i].routes.size());
    for (size_t p = 0; p < routes[i].size(); ++p)
      routes[i][p] = static_cast<int32_t>(p % static_cast<size_t>(top_k));
  }
  const Result forced = generate_all(model, prompts, how, others);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(forced.generations[i].routes, routes[i]);
  for (size_t i = 0; i < forced.load.counts.size(); ++i) {
    if (static_cast<int>(i % counts.size()) >= top_k) {
      ASSERT_EQ(forced.load.counts[i], 0);
    }
  }
  routes[1].pop_back();
  EXPECT_THROW(generate_all(model, prompts, how), InvalidArgument);
}

}  // namespace
}  // namespace trimtab
