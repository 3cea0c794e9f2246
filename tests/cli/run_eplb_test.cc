// SPDX-License-Identifier: Apache-2.0
// `trimtab run --eplb`: balancing changes where experts are, never what comes out.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <vector>

#include "tests/cli/command.h"
#include "trimtab/cost_file.h"
#include "trimtab/recordings.h"
#include "trimtab/table.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

// Prompts that change their domain, few at a time, so that later ones come later.
const std::string kShift =
    "run " + kTinyMoe + " --prompts " + kTinyMoe +
    "/domain_shift.txt --ranks 4 --max-sequences 12 --steps 64 --temperature 0.7 --json ";

// The same, for a few steps.
const std::string kShortShift = "run " + kTinyMoe + " --prompts " + kTinyMoe +
                                "/domain_shift.txt --ranks 4 --max-sequences 12 --steps 4 --json ";

Json run(const std::string& arguments) {
  const Outcome outcome = trimtab(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return outcome.status == 0 ? Json::parse(outcome.out) : Json();
}

double mean_par(const Json& result) {
  const auto pars = result.at("par_per_layer").get<std::vector<double>>();
  return std::accumulate(pars.begin(), pars.end(), 0.0) / static_cast<double>(pars.size());
}

int64_t total_rows(const Json& result) {
  int64_t rows = 0;
  for (const auto& layer : result.at("rank_load")) {
    for (const int64_t count : layer) rows += count;
  }
  return rows;
}

// A plan in every window, whatever it brings: something is under way in every step, and arrives
// before the next one.
std::string restless(const Scratch& scratch) {
  return scratch.file("restless.json",
                      R"({"interval": 1, "policy": "flashlb", "gate": false, "plan_above_par": 0,
        "use_async": false})");
}

// As without a file, but the same at every run, however busy the machine is.
std::string repeatable(const Scratch& scratch) {
  return scratch.file("repeatable.json",
                      R"({"preset": "short", "gate": false, "use_async": false})");
}

// Where a row costs the same whatever it meets, times are rows, and the rule time is split.
TEST(RunEplb, TimesStandBesideRowsWhereThereAreCosts) {
  const std::string run_of = kShortShift + "--redundant-experts 4 --split ";
  const Json rows = run(run_of + "split");
  EXPECT_FALSE(rows.contains("par_time_per_layer"));
  const Json times = run(run_of + "time --cost rows");
  EXPECT_EQ(times.at("outputs"), rows.at("outputs"));
  EXPECT_EQ(times.at("par_time_per_layer"), times.at("par_per_layer"));
  EXPECT_EQ(times.at("par_per_layer"), rows.at("par_per_layer"));
  const auto measured =
      run(run_of + "time --cost measure").at("par_time_per_layer").get<std::vector<double>>();
  ASSERT_EQ(measured.size(), 4U);
  for (const double par : measured) EXPECT_GE(par, 1);
}

// The metrics, the JSON and the text say the same, in rows and in time.
TEST(RunEplb, BalancingSpeaksOfRowsAndTime) {
  const Scratch scratch;
  const std::string metrics = scratch.file("m.prom");
  const std::string config =
      scratch.file("c.json", R"({"interval": 8, "gate": false, "use_async": false})");
  const std::string balanced =
      kShortShift + "--eplb dynamic --eplb-config " + config + " --metrics " + metrics;
  const auto sample = [&](const std::string& name) {
    const std::string text = "\n" + read_file(metrics);
    const size_t at = text.find("\n" + name + " ");
    return at == text.npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  };
  const Json rows = run(balanced).at("eplb");
  EXPECT_EQ(rows.at("par_rows"), sample("trimtab_par_rows"));
  EXPECT_FALSE(rows.contains("par_time"));
  EXPECT_FALSE(rows.contains("par_time_by_third"));
  EXPECT_EQ(sample("trimtab_par_time"), -1);
  EXPECT_EQ(sample("trimtab_balancing_info{split=\"split\",policy=\"trim\"}"), 1);

  const Json times = run(balanced + " --split time --cost measure").at("eplb");
  EXPECT_EQ(times.at("par_rows"), sample("trimtab_par_rows"));
  EXPECT_EQ(times.at("par_time"), sample("trimtab_par_time"));
  EXPECT_GE(times.at("par_time"), 1);
  ASSERT_EQ(times.at("par_time_by_third").size(), 3U);
  EXPECT_EQ(sample("trimtab_balancing_info{split=\"time\",policy=\"trim\"}"), 1);
  const std::string text =
      trimtab("run " + kTinyMoe + " --ranks 4 --steps 40 --eplb dynamic --eplb-config " + config +
              " --cost measure")
          .out;
  EXPECT_TRUE(contains(text, "last window, for rule time: PAR 1.")) << text;
  EXPECT_TRUE(contains(text, ", of a step in time 1.")) << text;
  EXPECT_TRUE(contains(text, "plans not applied: 0 rejected, 0 failed, 0 late")) << text;
}

TEST(RunEplb, BalancesWhenTheDomainChangesAndChangesNoToken) {
  const Scratch scratch;
  const Json off = run(kShift);
  EXPECT_EQ(run(kShift + "--eplb dynamic").at("outputs"), off.at("outputs"));
  const Json dynamic = run(kShift + "--eplb dynamic --eplb-config " + repeatable(scratch));
  EXPECT_EQ(dynamic.at("outputs"), off.at("outputs"));
  EXPECT_FALSE(off.contains("eplb"));
  const Json& eplb = dynamic.at("eplb");
  EXPECT_EQ(eplb.at("mode"), "dynamic");
  EXPECT_GE(eplb.at("replans"), 2);
  EXPECT_GT(eplb.at("layers_switched"), 4);
  EXPECT_GT(eplb.at("moves"), 0);
  EXPECT_GT(eplb.at("moved_bytes"), 0);
  EXPECT_EQ(eplb.at("rolled_back"), 0);
  EXPECT_EQ(eplb.at("plans_failed"), 0);
  EXPECT_EQ(eplb.at("plans_late"), 0);
  EXPECT_EQ(eplb.at("plans_rejected"), 0);
  EXPECT_EQ(eplb.at("split"), "split");
  EXPECT_GT(eplb.at("plan_seconds"), 0);
  EXPECT_GT(eplb.at("realised_gain"), 0);
  const auto thirds = eplb.at("par_by_third").get<std::vector<double>>();
  ASSERT_EQ(thirds.size(), 3U);
  // In rows. The run without is linear, whose skew the model has by nature.
  EXPECT_LT(thirds[2], 1.05);
  EXPECT_GT(mean_par(off), 1.2);
  // Whatever moved, every row was counted once.
  EXPECT_EQ(total_rows(dynamic), total_rows(off));
}

// The same in time, by costs that reading weights dominates: beside the rows stands the PAR of a
// step in time.
TEST(RunEplb, BalancesInTimeWhenTheDomainChanges) {
  const Scratch scratch;
  const Json off = run(kShift);
  const std::string costs = scratch.file("costs.json"),
                    config = scratch.file("c.json", R"({"preset": "short", "split": "time",
    "gate": false, "use_async": false, "measure_speeds": false})");
  const Json model = Json::parse(read_file(kTinyMoe + "/config.json"));
  std::vector<MeasuredCost> of_isas;
  for (const char* isa : {"scalar", "avx2", "avx2_vnni", "avx512", "avx512_bf16", "neon",
                          "neon_dotprod", "neon_bf16"}) {
    of_isas.push_back({.shape = "tiny-moe",
                       .hidden = model.at("hidden_size"),
                       .intermediate = model.at("moe_intermediate_size"),
                       .weights = off.at("experts"),
                       .isa = isa,
                       .threads = 1,
                       .cost = CostModel({{1, 10'000'000}, {16, 20'000'000}, {64, 70'000'000}})});
  }
  write_costs(costs, of_isas);
  const Json timed = run(kShift + "--threads-per-rank 1 --eplb dynamic --eplb-config " + config +
                         " --cost " + costs);
  EXPECT_EQ(timed.at("outputs"), off.at("outputs"));
  const Json& eplb = timed.at("eplb");
  EXPECT_GE(eplb.at("replans"), 2);
  const auto rows = eplb.at("par_by_third").get<std::vector<double>>(),
             times = eplb.at("par_time_by_third").get<std::vector<double>>();
  ASSERT_EQ(times.size(), 3U);
  EXPECT_LT(times[2], 1.12);
  EXPECT_LT(rows[2], 1.15);
}

// Steps while a plan is made and while experts move, and those after the last window.
TEST(RunEplb, TheMetricsCountEveryRow) {
  const Scratch scratch;
  const std::string file = scratch.file("m.prom");
  const std::string moving =
      scratch.file("moving.json", R"({"interval": 8, "gate": false, "plan_above_par": 0})");
  const std::string rare = scratch.file("rare.json", R"({"interval": 1000})");
  const std::string decode = scratch.file("decode.json", R"({"interval": 8, "phase": "decode"})");
  for (const std::string& config : {moving, rare, decode}) {
    for (const char* mode : {"dynamic", "screen"}) {
      const Json result = run("run " + kTinyMoe + " --ranks 2 --steps 50 --json --eplb " + mode +
                              " --eplb-config " + config + " --metrics " + file);
      const std::string text = read_file(file);
      int64_t counted = 0;
      const std::string series = "\ntrimtab_tokens_total{rank=\"";
      for (size_t at = text.find(series); at != text.npos; at = text.find(series, at + 1))
        counted += std::stoll(text.substr(text.find("} ", at) + 2));
      EXPECT_EQ(counted, total_rows(result)) << config << " " << mode;
    }
  }
}

TEST(RunEplb, SameTextWithAMigrationInEveryStepInEveryFormat) {
  const Scratch scratch;
  const std::string few = "run " + kTinyMoe + " --steps 20 --json --max-sequences 2 ";
  for (const char* format : {"f32", "bf16", "w8a8", "w4a8", "mxfp8"}) {
    const std::string experts = std::string("--experts ") + format;
    const Json reference = run(few + "--ranks 1 " + experts);
    for (const char* ranks : {"2", "4", "7"}) {
      const Json moving = run(few + "--ranks " + ranks + " " + experts +
                              " --eplb dynamic --eplb-config " + restless(scratch));
      EXPECT_EQ(moving.at("outputs"), reference.at("outputs"))
          << format << ", " << ranks << " ranks";
      EXPECT_GT(moving.at("eplb").at("layers_switched"), 3) << format << ", " << ranks << " ranks";
    }
  }
}

TEST(RunEplb, ProcessesGiveTheSameTextToo) {
  if (!kHasMpi) GTEST_SKIP() << "built without MPI";
  const Scratch scratch;
  const std::string arguments =
      "run " + kTinyMoe + " --steps 20 --json --max-sequences 2 --eplb dynamic --eplb-config " +
      restless(scratch);
  const std::string out = scratch.file("out");
  const std::string command = std::string(TRIMTAB_SOURCE_DIR) + "/tests/mpi/run.sh 2 " +
                              TRIMTAB_BINARY + " " + arguments + " >" + out + " 2>" +
                              scratch.file("err");
  ASSERT_EQ(std::system(command.c_str()), 0) << read_file(scratch.file("err"));
  const Json processes = Json::parse(read_file(out));
  const Json alone = run("run " + kTinyMoe + " --steps 20 --json --max-sequences 2 --ranks 1");
  EXPECT_EQ(processes.at("outputs"), alone.at("outputs"));
  EXPECT_GT(processes.at("eplb").at("layers_switched"), 3);
}

TEST(RunEplb, RecordsWhatPlanReadsAndStaticRuns) {
  const Scratch scratch;
  const std::string loads = scratch.file("loads.json"), map = scratch.file("loads.placement.json");
  const Json recorded = run(kShift + "--eplb record:" + loads);
  const Recording recording = read_recording(loads);
  EXPECT_EQ(recording.load.num_steps, recorded.at("steps"));
  ASSERT_EQ(std::ssize(recording.phases), recording.load.num_steps);
  const int64_t prefill = std::ranges::count(recording.phases, Phase::kPrefill);
  EXPECT_GT(prefill, 0);
  EXPECT_LT(prefill, recording.load.num_steps);
  EXPECT_EQ(Json::parse(trimtab("inspect " + loads + " --ranks 4 --phase prefill --json").out)
                .at("steps"),
            prefill);
  EXPECT_EQ(read_placement(map).placement.num_slots(), 32);
  const std::string plan = scratch.file("plan.json");
  ASSERT_EQ(trimtab("plan " + loads + " --ranks 4 --slots 9 --out " + plan).status, 0);
  const Json placed = run(kShift + "--eplb static:" + plan);
  EXPECT_EQ(placed.at("outputs"), recorded.at("outputs"));
  EXPECT_LT(mean_par(placed), mean_par(recorded) - 0.1);
  EXPECT_LT(mean_par(placed), 1.05);
}

// The tokens of a recording, if all are in its sample, must sum up to its loads.
void expect_tokens_are_the_loads(const Recording& recording) {
  ASSERT_TRUE(recording.tokens);
  const TokenSample& tokens = *recording.tokens;
  ASSERT_EQ(tokens.stride, 1);
  EXPECT_EQ(tokens.num_tokens(), tokens.tokens_seen);
  const int experts = recording.load.num_experts;
  std::vector<int64_t> sum(cells(recording.load.num_layers, experts)), of_tokens(sum.size());
  for (int64_t step = 0; step < recording.load.num_steps; ++step) {
    for (int layer = 0; layer < recording.load.num_layers; ++layer) {
      for (int e = 0; e < experts; ++e)
        sum[cells(layer, experts) + cells(e)] += recording.load.at(step, layer)[cells(e)];
    }
  }
  for (int64_t t = 0; t < tokens.num_tokens(); ++t) {
    for (int layer = 0; layer < recording.load.num_layers; ++layer) {
      for (const int32_t e : tokens.picks(t, layer)) ++of_tokens[cells(layer, experts) + cells(e)];
    }
  }
  EXPECT_EQ(of_tokens, sum);
}

TEST(RunEplb, RecordsTokensWithTheirRanks) {
  const Scratch scratch;
  const std::string loads = scratch.file("loads.json");
  const std::string command = "run " + kTinyMoe + " --steps 12 --json --ranks 2 --eplb record:";
  const Json recorded = run(command + loads);
  const Recording recording = read_recording(loads);
  expect_tokens_are_the_loads(recording);
  EXPECT_EQ(recording.tokens->num_ranks, 2);
  EXPECT_EQ(
      std::set<int32_t>(recording.tokens->source_rank.begin(), recording.tokens->source_rank.end()),
      (std::set<int32_t>{0, 1}));
  EXPECT_EQ(recorded.at("eplb").at("tokens_sampled"), recording.tokens->num_tokens());
  EXPECT_EQ(recorded.at("eplb").at("tokens_routed"), recording.tokens->tokens_seen);
  EXPECT_EQ(recorded.at("eplb").at("sources"), "recorded");
  const Json inspected =
      Json::parse(trimtab("inspect " + loads + " --ranks 2 --nodes 2 --json").out).at("traffic");
  EXPECT_EQ(inspected.at("sources"), "recorded");
  EXPECT_GT(inspected.at("node_copies_between_nodes"), 0);

  // Ranks of a tensor-parallel group have the same tokens, which count once.
  const std::string shared = scratch.file("shared.json");
  const Json group = run("run " + kTinyMoe + " --steps 12 --json --tp 2 --eplb record:" + shared);
  expect_tokens_are_the_loads(read_recording(shared));
  EXPECT_EQ(read_recording(shared).tokens->num_ranks, 0);
  EXPECT_EQ(group.at("eplb").at("sources"), "even");
  EXPECT_EQ(read_recording(shared).tokens->tokens_seen, recording.tokens->tokens_seen);

  // Formats of loads alone have no place for them.
  const Json npy = run(command + scratch.file("loads.npy"));
  EXPECT_EQ(npy.at("eplb").at("tokens_sampled"), 0);
  const Outcome text = trimtab("run " + kTinyMoe + " --steps 4 --ranks 2 --eplb record:" + loads);
  EXPECT_TRUE(contains(text.out, " tokens with the ranks that they come from\n")) << text.out;
}

TEST(RunEplb, ProcessesRecordTheTokensOfThreads) {
  if (!kHasMpi) GTEST_SKIP() << "built without MPI";
  const Scratch scratch;
  const std::string threads = scratch.file("threads.json"), out = scratch.file("processes.json");
  const std::string arguments = "run " + kTinyMoe + " --steps 12 --json --eplb record:";
  run(arguments + threads + " --ranks 2");
  const std::string command = std::string(TRIMTAB_SOURCE_DIR) + "/tests/mpi/run.sh 2 " +
                              TRIMTAB_BINARY + " " + arguments + out + " >" + scratch.file("out") +
                              " 2>" + scratch.file("err");
  ASSERT_EQ(std::system(command.c_str()), 0) << read_file(scratch.file("err"));
  const Recording mine = read_recording(threads), theirs = read_recording(out);
  expect_tokens_are_the_loads(theirs);
  EXPECT_EQ(theirs.tokens->ids, mine.tokens->ids);
  EXPECT_EQ(theirs.tokens->source_rank, mine.tokens->source_rank);
  EXPECT_EQ(theirs.tokens->tokens_seen, mine.tokens->tokens_seen);
}

TEST(RunEplb, GoesOnFromTheMapAtTheEnd) {
  const Scratch scratch;
  const std::string first = scratch.file("first.json"), second = scratch.file("second.json");
  const std::string options = " --eplb-config " + repeatable(scratch) + " --placement-out ";
  const Json begun = run(kShift + "--eplb dynamic" + options + first);
  const Json gone_on = run(kShift + "--eplb dynamic:" + first + options + second);
  EXPECT_EQ(gone_on.at("outputs"), begun.at("outputs"));
  EXPECT_LT(mean_par(gone_on), mean_par(begun));
  EXPECT_EQ(read_placement(second).placement.num_slots(),
            read_placement(first).placement.num_slots());
  // As it is, and judged.
  const Json held = run(kShift + "--eplb static:" + first + " --placement-out " + second);
  EXPECT_EQ(held.at("outputs"), begun.at("outputs"));
  EXPECT_EQ(read_file(second), read_file(first));
  const Json screened = run(kShift + "--eplb screen:" + first);
  EXPECT_EQ(screened.at("outputs"), begun.at("outputs"));
  EXPECT_EQ(screened.at("eplb").at("layers_switched"), 0);
}

TEST(RunEplb, ScreeningSaysWhetherItWouldPay) {
  const Scratch scratch;
  const Json screened = run(kShift + "--eplb screen --eplb-config " + repeatable(scratch));
  EXPECT_EQ(screened.at("eplb").at("verdict"), "recommended");
  EXPECT_EQ(screened.at("eplb").at("moves"), 0);
  EXPECT_EQ(screened.at("eplb").at("layers_switched"), 0);
  const Outcome text = trimtab("run " + kTinyMoe + " --ranks 4 --steps 3 --eplb screen");
  EXPECT_TRUE(contains(text.out, "screened, nothing applied: not enough evidence")) << text.out;
}

TEST(RunEplb, WritesMetricsPageAndTrace) {
  const Scratch scratch;
  const std::string metrics = scratch.file("m.prom"), page = scratch.file("p.html"),
                    trace = scratch.file("t.json");
  run(kShift + "--eplb dynamic --eplb-config " + repeatable(scratch) + " --metrics " + metrics +
      " --report " + page + " --chrome-trace " + trace);
  const std::string text = read_file(metrics);
  EXPECT_TRUE(contains(text, "\ntrimtab_rebalances_total ")) << text;
  EXPECT_FALSE(contains(text, "\ntrimtab_rebalances_total 0\n")) << text;
  EXPECT_TRUE(contains(read_file(page), "realised"));
  // Windows that are left alone show too.
  const std::string idle =
      scratch.file("idle.json", R"({"preset": "short", "plan_above_par": 1000})");
  run(kShift + "--eplb dynamic --eplb-config " + idle + " --metrics " + metrics);
  EXPECT_TRUE(contains(read_file(metrics), "\ntrimtab_rebalances_total 0\n"));
  EXPECT_FALSE(contains(read_file(metrics), "\ntrimtab_tokens_total{rank=\"0\"} 0\n"));
  const Json events = Json::parse(read_file(trace)).at("traceEvents");
  const auto count = [&](const char* name) {
    return std::ranges::count_if(
        events, [&](const Json& event) { return event.value("name", "") == name; });
  };
  for (const char* name : {"gather loads", "plan", "share plan", "migrate", "switch", "expert"}) {
    EXPECT_GT(count(name), 0) << name;
  }
}

TEST(RunEplb, RefusesWhatCannotBe) {
  const Scratch scratch;
  const std::string few = "run " + kTinyMoe + " --ranks 4 --steps 1 ";
  const auto refused = [&](const std::string& arguments) {
    return error_line({few + arguments, ""}, 1);
  };
  const auto wrong_usage = [&](const std::string& arguments) {
    return error_line({few + arguments, ""}, 2);
  };
  EXPECT_EQ(wrong_usage("--eplb dynamik"),
            "--eplb: must be off, static:FILE, record:FILE, dynamic[:FILE] or screen[:FILE], not "
            "\"dynamik\" (did you mean \"dynamic\"?) (see trimtab run --help)");
  EXPECT_EQ(wrong_usage("--eplb static"),
            "--eplb: static needs a file: static:FILE (see trimtab run --help)");
  EXPECT_EQ(wrong_usage("--eplb dynamic:"),
            "--eplb: dynamic needs a file: dynamic:FILE (see trimtab run --help)");
  EXPECT_EQ(wrong_usage("--eplb off:x"), "--eplb: off takes no file (see trimtab run --help)");
  EXPECT_TRUE(contains(refused("--eplb dynamic:" + scratch.file("absent")), "absent"));
  EXPECT_TRUE(
      contains(refused("--placement-out /no/such/folder/x.json"), "/no/such/folder/x.json"));
  const std::string config = scratch.file("c.json", R"({"intervall": 3})");
  EXPECT_EQ(refused("--eplb dynamic --eplb-config " + config),
            config + ": there is no setting \"intervall\" (did you mean \"interval\"?)");
  EXPECT_EQ(
      refused("--eplb dynamic --eplb-config " + scratch.file("zero.json", R"({"interval": 0})")),
      "interval must be at least 1, not 0");
  EXPECT_TRUE(
      contains(refused("--eplb dynamic --eplb-config " + scratch.file("absent")), "can't be read"));
  EXPECT_TRUE(contains(
      refused("--eplb dynamic --dispatcher mc2 --eplb-config " + scratch.file("s.json", "{}")),
      "can't share tokens out"));
  const std::string map = scratch.file("map.json");
  ASSERT_EQ(trimtab("plan " + kTinyMoe + "/trace.npy --ranks 2 --slots 16 --out " + map).status, 0);
  EXPECT_TRUE(contains(refused("--eplb static:" + map), "on 2 ranks, this run has 4"));
  const std::string twice = scratch.file("twice.json", R"({"interval": 2, "interval": 3})");
  EXPECT_TRUE(contains(refused("--eplb dynamic --eplb-config " + twice),
                       twice + ": key 'interval' comes twice"));
  const std::string huge = scratch.file("huge.json", R"({"plan_above_par": 1e999})");
  EXPECT_EQ(refused("--eplb dynamic --eplb-config " + huge),
            huge + ": not valid JSON: number overflow parsing '1e999'");
}

// Which replica computes a pick changes no token. Costs come from rows, a measurement or a file.
TEST(RunSplit, TimeGivesTheOutputsOfAllOtherRules) {
  const Scratch scratch;
  const std::string few = "run " + kTinyMoe + " --ranks 3 --steps 6 --json --redundant-experts 6 ";
  const Json still = run(few + "--split static");
  for (const char* cost : {"rows", "measure"}) {
    const Json timed = run(few + "--split time --cost " + cost);
    EXPECT_EQ(timed.at("outputs"), still.at("outputs")) << cost;
  }
  const std::string other = scratch.file("other.json", R"({"format": "trimtab_costs", "version": 1,
    "costs": [{"hidden": 8, "intermediate": 4, "weights": "f32", "isa": "none", "threads": 1,
               "points": [[1, 2]]}]})");
  const Outcome refused = trimtab(few + "--split time --cost " + other);
  EXPECT_EQ(refused.status, 1);
  EXPECT_TRUE(contains(refused.err, "other.json has no cost of f32 experts of ")) << refused.err;
  EXPECT_EQ(trimtab(few + "--split time").status, 2);
  EXPECT_EQ(trimtab(few + "--split split --cost rows").status, 2);
  // Where there is a cost, the rule is time unless another is named.
  const std::string metrics = scratch.file("m.prom");
  EXPECT_EQ(run(few + "--cost rows").at("outputs"), still.at("outputs"));
  run(few + "--cost measure --eplb dynamic --metrics " + metrics);
  EXPECT_TRUE(contains(read_file(metrics), "trimtab_balancing_info{split=\"time\""));
  EXPECT_EQ(trimtab(few + "--cost rows --eplb dynamic --eplb-config " +
                    scratch.file("split.json", R"({"split": "split"})"))
                .status,
            2);
  EXPECT_EQ(trimtab("run " + kTinyMoe + " --ranks 3 --steps 6 --split time --cost rows").status, 2);
}

}  // namespace
}  // namespace trimtab::cli
