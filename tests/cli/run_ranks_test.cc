// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "observe/trace_checking.h"
#include "tests/cli/command.h"

namespace trimtab::cli {
namespace {

using Json = nlohmann::json;

// What does not fit the budget takes more rounds, and changes nothing that can be seen.
TEST(Run, TheRowBudgetChangesNoOutput) {
  const auto outputs = [](const std::string& budget) {
    const Outcome run = trimtab("run " + kTinyMoe + " --ranks 4 --steps 3 --json" + budget);
    EXPECT_EQ(run.status, 0) << run.err;
    const Json json = Json::parse(run.out);
    return Json{json.at("outputs"), json.at("rank_load"), json.at("steps")};
  };
  const Json whole = outputs(" --row-budget 0");
  EXPECT_EQ(outputs(""), whole);
  EXPECT_EQ(outputs(" --row-budget 0.02"), whole);
  EXPECT_EQ(trimtab("run " + kTinyMoe + " --row-budget -1").status, 2);
}

// What the trace of every rank must hold; what depends on timing is left out.
void expect_run_in_trace(const std::string& text, const Json& run) {
  const CheckedTrace trace = check_trace(text);
  const int ranks = run.at("ranks");
  const int64_t steps = run.at("steps"), layers = 4;
  ASSERT_EQ(std::ssize(trace.processes), ranks);
  ASSERT_EQ(std::ssize(trace.threads), ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(trace.processes.at(rank), "rank " + std::to_string(rank));
    EXPECT_EQ(trace.threads.at({rank, 0}), "steps");
    const auto& slices = trace.slices.at({rank, 0});
    for (const char* of_step : {"step", "embedding", "head", "sampling"})
      EXPECT_EQ(slices.at(of_step), steps) << of_step;
    EXPECT_EQ(slices.at("agreement"), steps + 1);
    for (const char* of_layer : {"moe", "route", "dispatch", "experts", "combine", "sort rows"}) {
      EXPECT_EQ(slices.at(of_layer), steps * layers) << of_layer;
    }
    int64_t rows = 0;
    for (const Json& load : run.at("rank_load")) rows += load.at(rank).get<int64_t>();
    EXPECT_EQ(trace.counters.at(rank).at("expert rows"), rows);
  }
}

TEST(Run, WritesAChromeTrace) {
  const Scratch scratch;
  const std::string file = scratch.file("trace.json");
  for (const std::string dispatcher : {"pull", "packed"}) {
    const Outcome run = trimtab("run " + kTinyMoe + " --json --ranks 3 --steps 8 --dispatcher " +
                                dispatcher + " --threads-per-rank 2 --chrome-trace " + file);
    ASSERT_EQ(run.status, 0) << run.err;
    expect_run_in_trace(read_file(file), Json::parse(run.out));
  }
}

// The same command on processes: `script RANKS trimtab run ...`; null when the script skips, or the
// build has no MPI.
Json run_under(const std::string& script, const std::string& options) {
  if (!kHasMpi) return nullptr;
  const Scratch scratch;
  const std::string out = scratch.file("stdout");
  const std::string command = std::string(TRIMTAB_SOURCE_DIR) + "/tests/" + script + " " +
                              TRIMTAB_BINARY + " run " + kTinyMoe +
                              " --json --steps 8 --temperature 2 --seed 3 " + options + " >" + out;
  const int status = WEXITSTATUS(std::system(command.c_str()));
  if (status == 77) return nullptr;
  EXPECT_EQ(status, 0) << read_file(out);
  return Json::parse(read_file(out), nullptr, false);
}

void expect_same_run(const Json& processes, const Json& threads) {
  for (const char* key : {"outputs", "ranks", "steps", "tokens", "par_per_layer", "rank_load"}) {
    EXPECT_EQ(processes.at(key), threads.at(key)) << key;
  }
}

TEST(Run, ProcessesGiveWhatThreadsGive) {
  for (const std::string dispatcher : {"pull", "all_gather", "packed", "hybrid"}) {
    const Scratch scratch;
    const std::string options = "--dispatcher " + dispatcher + " --trace-out " +
                                scratch.file("trace.npy") + " --chrome-trace " +
                                scratch.file("trace.json");
    const Json processes = run_under("mpi/run.sh 4", options);
    if (processes.is_null()) GTEST_SKIP() << "needs MPI and mpiexec";
    const std::string trace = read_file(scratch.file("trace.npy"));
    if (dispatcher != "hybrid")
      expect_run_in_trace(read_file(scratch.file("trace.json")), processes);
    const Outcome threads = trimtab(
        "run " + kTinyMoe + " --json --steps 8 --temperature 2 --seed 3 --ranks 4 " + options);
    ASSERT_EQ(threads.status, 0) << threads.err;
    expect_same_run(processes, Json::parse(threads.out));
    EXPECT_EQ(trace, read_file(scratch.file("trace.npy")));
  }
}

// Each dispatcher that works over hosts, and what auto takes there, with one slot for each expert
// and with replicas: the text is that of one rank.
TEST(Run, SeveralHostsGiveWhatThreadsAndOneRankGive) {
  const std::string sampled = "run " + kTinyMoe + " --json --steps 8 --temperature 2 --seed 3 ";
  const auto run_here = [&](const std::string& options) {
    const Outcome run = trimtab(sampled + options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out, nullptr, false);
  };
  const Json alone = run_here("--ranks 1");
  for (const std::string dispatcher :
       {"auto", "all_gather", "all_to_all", "mc2", "packed", "hybrid"}) {
    for (const bool replicas : {false, true}) {
      SCOPED_TRACE(dispatcher + (replicas ? ", replicas" : ""));
      const Scratch scratch;
      const std::string options = "--dispatcher " + dispatcher +
                                  (replicas ? " --redundant-experts 12" : "") + " --chrome-trace " +
                                  scratch.file("trace.json");
      const Json processes = run_under("hosts/run.sh 2 2 full", options);
      if (processes.is_null()) GTEST_SKIP() << "needs MPI, Open MPI's mpiexec and namespaces";
      ASSERT_TRUE(processes.is_object());
      EXPECT_EQ(processes.at("outputs"), alone.at("outputs"));
      EXPECT_EQ(processes.at("ranks"), 4);
      const std::string used = processes.at("dispatcher");
      EXPECT_EQ(used, dispatcher != "auto" ? dispatcher : "hybrid");
      const bool shares = used != "all_gather" && used != "mc2";
      EXPECT_EQ(processes.value("split", ""), !replicas ? "" : shares ? "split" : "static");
      if (used != "hybrid") expect_run_in_trace(read_file(scratch.file("trace.json")), processes);
      // How picks are shared out over replicas depends on the hosts.
      if (!replicas) expect_same_run(processes, run_here("--ranks 4 " + options));
    }
  }
}

// Layouts: the text of one rank, on threads, processes and hosts. Parts of experts change the order
// of additions, so their text is that of greedy sampling here.
TEST(Run, LayoutsGiveTheTextOfOneRank) {
  const std::string greedy = "run " + kTinyMoe + " --json --steps 8 ";
  const auto run_here = [&](const std::string& options) {
    const Outcome run = trimtab(greedy + options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out, nullptr, false);
  };
  const Json alone = run_here("--ranks 1").at("outputs");
  for (const std::string layout :
       {"--tp 2", "--tp 2 --dp 2 --dispatcher all_to_all", "--dp 2 --pcp 2", "--tp 4 --no-sp",
        "--tp 2 --dp 2 --no-ep", "--tp 4 --no-ep", "--tp 2 --pcp 2 --no-ep",
        "--tp 2 --eplb dynamic", "--tp 2 --weights w8a8 --ranks 2", "--ranks 6 --tp 3"}) {
    SCOPED_TRACE(layout);
    const Json run = run_here(layout);
    ASSERT_TRUE(run.is_object());
    const Json& said = run.at("layout");
    EXPECT_EQ(said.at("ep"), !contains(layout, "--no-ep"));
    EXPECT_EQ(said.at("tp").get<int>() * said.at("dp").get<int>() * said.at("pcp").get<int>(),
              run.at("ranks"));
    if (contains(layout, "w8a8")) {
      EXPECT_EQ(run.at("outputs"), run_here("--ranks 1 --weights w8a8").at("outputs"));
    } else {
      EXPECT_EQ(run.at("outputs"), alone);
    }
  }
  const Outcome text =
      trimtab("run " + kTinyMoe + " --steps 1 --tp 2 --dp 2 --no-ep --threads-per-rank 1");
  EXPECT_TRUE(contains(text.out, "4 ranks (tp 2 x dp 2, experts in parts) x 1 thread")) << text.out;
  EXPECT_TRUE(contains(text.out, ", summed, f32")) << text.out;
}

TEST(Run, LayoutsOnProcessesAndHostsGiveWhatThreadsGive) {
  for (const std::string layout :
       {"--tp 2", "--tp 4 --no-sp", "--tp 2 --dp 2 --no-ep", "--dp 2 --pcp 2"}) {
    for (const std::string script : {"mpi/run.sh 4", "hosts/run.sh 2 2 full"}) {
      SCOPED_TRACE(layout + ", " + script);
      const Json processes = run_under(script, layout);
      if (processes.is_null()) continue;
      ASSERT_TRUE(processes.is_object());
      const Outcome threads = trimtab(
          "run " + kTinyMoe + " --json --steps 8 --temperature 2 --seed 3 --ranks 4 " + layout);
      ASSERT_EQ(threads.status, 0) << threads.err;
      const Json here = Json::parse(threads.out);
      for (const char* key : {"outputs", "ranks", "layout", "steps", "tokens", "rank_load"})
        EXPECT_EQ(processes.at(key), here.at(key)) << key;
    }
  }
}

// --wire: what travels between ranks, in all ways of running them. Threads count what processes
// send.
TEST(Run, WireTypesSendFewerBytes) {
  const std::string options = "--dispatcher packed --wire ";
  const auto wire_of = [&](const std::string& type) {
    const Outcome run =
        trimtab("run " + kTinyMoe + " --json --steps 8 --temperature 2 --seed 3 --ranks 2 " +
                options + type);
    EXPECT_EQ(run.status, 0) << run.err;
    const Json wire = Json::parse(run.out).at("wire");
    EXPECT_EQ(wire.at("rows"), type);
    EXPECT_EQ(wire.at("results"), type);
    EXPECT_EQ(wire.at("bytes_between_hosts"), 0);
    return wire.at("bytes").get<double>();
  };
  const double f32 = wire_of("f32"), i8 = wire_of("i8");
  EXPECT_LE(i8, 0.3 * f32);
  EXPECT_LE(wire_of("mxfp8"), 0.3 * f32);
  EXPECT_LE(wire_of("bf16"), 0.55 * f32);
  EXPECT_GT(wire_of("bf16"), 0.45 * f32);
  for (const std::string type : {"f32", "i8"}) {
    const Json hosts = run_under("hosts/run.sh 2 1 full", options + type);
    if (hosts.is_null()) continue;
    const Json& wire = hosts.at("wire");
    EXPECT_EQ(wire.at("rows"), type);
    EXPECT_EQ(wire.at("bytes_between_hosts"), wire.at("bytes"));
    EXPECT_LE(wire.at("bytes").get<double>(), (type == "i8" ? 0.3 : 1.01) * f32);
  }
  const Outcome text = trimtab("run " + kTinyMoe + " --steps 2 --ranks 2 " + options + "i8");
  EXPECT_TRUE(contains(text.out, "rows as i8, results as i8, ")) << text.out;
  EXPECT_TRUE(contains(text.out, " MB sent to other ranks (0.000 between hosts)")) << text.out;
}

// Every row is rounded, also where it stays: with a dispatcher that keeps the order, the text is
// that of one rank, on threads and processes.
TEST(Run, WireTypesGiveTheTextOfOneRank) {
  const auto run_here = [](const std::string& options) {
    const Outcome run =
        trimtab("run " + kTinyMoe + " --json --steps 8 --temperature 2 --seed 3 " + options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out);
  };
  for (const std::string options :
       {"--dispatcher all_to_all --wire i8", "--dispatcher mc2 --wire bf16",
        "--dispatcher all_to_all --wire mxfp8 --experts w8a8"}) {
    SCOPED_TRACE(options);
    const Json alone = run_here("--ranks 1 " + options), four = run_here("--ranks 4 " + options);
    EXPECT_EQ(alone.at("outputs"), four.at("outputs"));
    EXPECT_EQ(alone.at("wire").at("bytes"), 0);
    const Json processes = run_under("mpi/run.sh 4", options);
    if (processes.is_null()) continue;
    EXPECT_EQ(processes.at("outputs"), four.at("outputs"));
    EXPECT_EQ(processes.at("wire"), four.at("wire"));
  }
  // auto takes what can send; without --wire all is as it was.
  EXPECT_EQ(run_here("--ranks 2 --wire i8").at("dispatcher"), "packed");
  const Json usual = run_here("--ranks 2 --experts w8a8");
  EXPECT_EQ(usual.at("dispatcher"), "pull");
  EXPECT_EQ(usual.at("wire"),
            (Json{{"rows", "bf16"}, {"results", "f32"}, {"bytes", 0}, {"bytes_between_hosts", 0}}));
  EXPECT_EQ(run_here("--ranks 2 --dispatcher pull --wire f32").at("outputs"),
            run_here("--ranks 1").at("outputs"));
}

TEST(Run, DispatchersThatSendNoResultsRefuseOtherWireTypes) {
  for (const std::string name : {"pull", "fused", "all_gather"}) {
    const std::string line =
        error_line({"run " + kTinyMoe + " --ranks 2 --wire i8 --dispatcher " + name, ""}, 1);
    EXPECT_EQ(line,
              name + " can't send results as I8, only all_to_all, hybrid, mc2 and packed can");
  }
  EXPECT_TRUE(contains(error_line({"run " + kTinyMoe + " --tp 2 --no-ep --wire i8", ""}, 1),
                       "its ranks sum parts, which travel as F32, not as I8"));
}

// R12: forced balance for profile runs: random distinct logical experts, weights as routed; never
//     recorded: not by the balancer, the recorder, --trace-out or --routes-out.
TEST(Run, ForceBalanceLevelsRanksAndRecordsNothing) {
  const Scratch scratch;
  const std::string trace = scratch.file("trace.json");
  const std::string command =
      "run " + kTinyMoe + " --json --ranks 4 --steps 40 --chrome-trace " + trace;
  // The busiest rank's rows over the mean, as the counters of the trace have them.
  const auto peak = [&](const Json& json) {
    const CheckedTrace checked = check_trace(read_file(trace));
    std::vector<int64_t> rows;
    for (const auto& [rank, counters] : checked.counters)
      rows.push_back(counters.at("expert rows"));
    EXPECT_EQ(rows.size(), 4U) << json;
    const auto sum = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    return 4.0 * static_cast<double>(std::ranges::max(rows)) / static_cast<double>(sum);
  };
  const auto run_here = [&](const std::string& options) {
    const Outcome run = trimtab(command + options);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out);
  };
  const Json plain = run_here("");
  EXPECT_EQ(plain.at("force_balance"), false);
  const double routed = peak(plain);
  const Json forced = run_here(" --force-balance");
  EXPECT_EQ(forced.at("force_balance"), true);
  const double level = peak(forced);
  // Of 12,000 picks each rank gets a quarter, give or take 50. If all ranks or steps drew the same
  // experts it were as uneven as routed.
  EXPECT_LT(level, 1.05);
  EXPECT_LT(level, routed);
  EXPECT_EQ(forced.at("par_per_layer"), Json::array());
  EXPECT_EQ(forced.at("rank_load"), Json::array());
  EXPECT_NE(forced.at("outputs"), plain.at("outputs"));
  EXPECT_EQ(run_here(" --force-balance").at("outputs"), forced.at("outputs"));
  const Outcome text = trimtab("run " + kTinyMoe + " --ranks 2 --steps 2 --force-balance");
  EXPECT_TRUE(contains(text.out, "profile run (--force-balance): ")) << text.out;
  EXPECT_FALSE(contains(text.out, "busiest rank")) << text.out;
  const Json processes = run_under("mpi/run.sh 4", "--force-balance");
  if (processes.is_null()) return;
  const Outcome threads = trimtab("run " + kTinyMoe +
                                  " --json --steps 8 --temperature 2 --seed 3 --ranks 4 "
                                  "--force-balance");
  EXPECT_EQ(processes.at("outputs"), Json::parse(threads.out).at("outputs"));
  EXPECT_EQ(processes.at("rank_load"), Json::array());
}

// Prompts may be read in chunks of any size; smaller ones take more steps.
TEST(Run, ChunksOfPromptsGiveTheSameText) {
  const auto run_here = [](const std::string& more) {
    const Outcome run =
        trimtab("run " + kTinyMoe + " --json --ranks 2 --steps 4 --temperature 2 --seed 3 " + more);
    EXPECT_EQ(run.status, 0) << run.err;
    return Json::parse(run.out);
  };
  const Json usual = run_here("");
  EXPECT_EQ(run_here("--step-tokens 256").at("steps"), usual.at("steps"));
  int64_t steps = usual.at("steps");
  for (const char* tokens : {"64", "7", "1"}) {
    const Json run = run_here(std::string("--step-tokens ") + tokens);
    EXPECT_EQ(run.at("outputs"), usual.at("outputs")) << tokens;
    EXPECT_GT(run.at("steps").get<int64_t>(), steps) << tokens;
    steps = run.at("steps");
    EXPECT_LT(run["memory"]["ranks"][0]["workspace"].get<int64_t>(),
              usual["memory"]["ranks"][0]["workspace"].get<int64_t>());
  }
  EXPECT_EQ(run_here("--step-tokens 5000").at("outputs"), usual.at("outputs"));
  EXPECT_EQ(trimtab("run " + kTinyMoe + " --step-tokens 0").status, 2);
}

// Two microbatches give the text and the routes of one batch; where a rank has a single token, as
// with one sequence, steps are one batch.
TEST(Run, OverlapGivesTheSameText) {
  const std::string how = "run " + kTinyMoe + " --json --steps 6 --temperature 2 --seed 3 ";
  for (const std::string options :
       {"--ranks 3", "--ranks 4 --dispatcher packed --redundant-experts 4", "--tp 2 --dp 2 --no-ep",
        "--ranks 3 --force-balance", "--ranks 2 --eplb dynamic", "--ranks 2 --max-sequences 1"}) {
    SCOPED_TRACE(options);
    const Scratch scratch;
    const auto run_here = [&](const std::string& more) {
      const std::string out = scratch.file("routes.npy");
      const bool routes = options.find("--force-balance") == std::string::npos;
      const Outcome run =
          trimtab(how + options + more + (routes ? " --routes-out " + out : std::string()));
      EXPECT_EQ(run.status, 0) << run.err;
      Json json = Json::parse(run.out, nullptr, false);
      if (routes) json["routes"] = read_file(out);
      return json;
    };
    const Json one = run_here(""), two = run_here(" --overlap");
    EXPECT_EQ(one.at("outputs"), two.at("outputs"));
    EXPECT_TRUE(one.value("routes", Json()) == two.value("routes", Json()));
    EXPECT_FALSE(one.contains("overlap"));
    const int64_t steps = two.at("overlap").at("steps");
    EXPECT_GT(steps, 0);
    EXPECT_LE(steps, two.at("steps").get<int64_t>());
    if (options.find("--max-sequences 1") != std::string::npos) {
      EXPECT_LT(steps, two.at("steps").get<int64_t>());
    }
  }
  const Outcome text = trimtab("run " + kTinyMoe + " --ranks 2 --steps 2 --overlap");
  EXPECT_TRUE(contains(text.out, "2 of 2 steps were two microbatches\n")) << text.out;
  EXPECT_EQ(
      error_line({"run " + kTinyMoe + " --ranks 1 --overlap"}, 2),
      "--overlap: one rank waits for nobody; it takes --ranks 2 or more (see trimtab run --help)");
  const Json processes = run_under("mpi/run.sh 4", "--overlap --dispatcher all_to_all");
  if (processes.is_null()) return;
  const Outcome threads = trimtab("run " + kTinyMoe +
                                  " --json --steps 8 --temperature 2 --seed 3 --ranks 4 "
                                  "--overlap --dispatcher all_to_all");
  expect_same_run(processes, Json::parse(threads.out));
}

// Over hosts a thread of each process moves messages on; the text is the same.
TEST(Run, ProgressThreadsChangeNoText) {
  const Json with = run_under("hosts/run.sh 2 1 full", "--progress-thread --dispatcher packed");
  if (with.is_null()) GTEST_SKIP() << "needs MPI, Open MPI's mpiexec and namespaces";
  EXPECT_EQ(with.at("progress_thread"), true);
  const Outcome threads = trimtab("run " + kTinyMoe +
                                  " --json --steps 8 --temperature 2 --seed 3 --ranks 2 "
                                  "--dispatcher packed");
  ASSERT_EQ(threads.status, 0) << threads.err;
  const Json here = Json::parse(threads.out);
  EXPECT_EQ(here.at("progress_thread"), false);
  expect_same_run(with, here);
}

TEST(Run, LayoutsThatCannotBeAreRefused) {
  const std::string few = "run " + kTinyMoe + " --steps 1 ";
  const auto refused = [&](const std::string& arguments, int status) {
    const Outcome run = trimtab(few + arguments);
    EXPECT_EQ(run.status, status) << arguments << run.err;
    return run.err;
  };
  EXPECT_TRUE(contains(refused("--ranks 4 --tp 3", 1), "4 ranks are not a multiple of tp 3"));
  EXPECT_TRUE(contains(refused("--ranks 4 --tp 2 --dp 3", 1), "are not 4 ranks"));
  EXPECT_TRUE(contains(refused("--tp 2 --dp 2 --no-sp", 1), "one tensor-parallel group"));
  EXPECT_TRUE(contains(refused("--no-ep", 2), "--no-ep: it has no effect without --tp"));
  EXPECT_TRUE(contains(refused("--tp 2 --no-ep --no-sp", 2), "--no-sp: it has no effect"));
  EXPECT_TRUE(contains(refused("--tp 2 --no-ep --eplb dynamic", 2), "--eplb: with --no-ep"));
  EXPECT_TRUE(
      contains(refused("--tp 2 --no-ep --trace-out x.npy", 2), "--trace-out: with --no-ep"));
  EXPECT_TRUE(contains(refused("--tp 2 --no-ep --dispatcher pull", 1), "takes dispatcher auto"));
  EXPECT_TRUE(contains(refused("--tp 2 --no-sp --redundant-experts 2 --split static", 1),
                       "replicas can't share out"));
  EXPECT_TRUE(contains(refused("--tp 4 --no-ep --weights mxfp8", 1), "can't be cut into 4 parts"));
}

TEST(Run, OtherRanksThanMpiexecStartedAreRefused) {
  if (!kHasMpi) GTEST_SKIP() << "needs MPI";
  const Scratch scratch;
  const std::string err = scratch.file("stderr");
  const std::string command = std::string(TRIMTAB_SOURCE_DIR) + "/tests/mpi/run.sh 2 " +
                              TRIMTAB_BINARY + " run " + kTinyMoe + " --ranks 3 2>" + err +
                              " >/dev/null";
  const int status = WEXITSTATUS(std::system(command.c_str()));
  if (status == 77) GTEST_SKIP() << "needs mpiexec";
  EXPECT_EQ(status, 1);
  EXPECT_TRUE(contains(read_file(err),
                       "trimtab: --ranks 3, but mpiexec has started 2 processes, a rank each"))
      << read_file(err);
}

// Two processes, a rank each, with arguments of their own.
Outcome run_two(const std::string& first, const std::string& second) {
  const Scratch scratch;
  const std::string out = scratch.file("stdout"), err = scratch.file("stderr");
  const std::string command =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 mpiexec "
      "--oversubscribe --mca mpi_yield_when_idle 1 -n 1 " TRIMTAB_BINARY " " +
      first + " : -n 1 " TRIMTAB_BINARY " " + second + " >" + out + " 2>" + err;
  const int status = WEXITSTATUS(std::system(command.c_str()));
  return {status, read_file(out), read_file(err)};
}

TEST(Run, RanksThatWereStartedDifferentlyAreToldHow) {
  if (!kHasMpi || std::system("mpiexec --version 2>&1 | grep -q 'Open MPI\\|OpenRTE'") != 0)
    GTEST_SKIP() << "needs Open MPI";
  const Scratch scratch;
  const std::string copy = scratch.file("model");
  std::filesystem::copy(kTinyMoe, copy);
  const std::string config = read_file(copy + "/config.json");
  scratch.file("model/config.json", config + "\n");
  const std::string two = scratch.file("two", "a\nb\n"), other = scratch.file("other", "a\nc\n");
  const std::string with = "run " + kTinyMoe + " --timeout 10 --steps 5 ";
  struct Case {
    std::string first, second, named;
  };
  for (const Case& one : std::vector<Case>{
           {with, "run " + kTinyMoe + " --timeout 10 --steps 9",
            "--steps: 5 on rank 0, 9 on rank 1"},
           {with, with + "--max-sequences 1", "--max-sequences: 0 on rank 0, 1 on rank 1"},
           {with + "--token-ids '1;2;3'", with + "--token-ids 1", "the prompts"},
           {with + "--prompts " + two, with + "--prompts " + other, "the prompts"},
           {with, with + "--wire i8", "--wire: not given on rank 0, i8 on rank 1"},
           {with, with + "--eplb dynamic", "--eplb: off on rank 0, dynamic on rank 1"},
           {with, with + "--report " + scratch.file("page"), "--report: not given on rank 0"},
           {with, "run " + copy + " --timeout 10 --steps 5", "config.json of the model"}}) {
    const Outcome run = run_two(one.first, one.second);
    EXPECT_EQ(run.out, "") << one.second;
    EXPECT_NE(run.status, 0) << one.second;
    EXPECT_TRUE(contains(run.err, "trimtab: the ranks were started differently: ")) << run.err;
    EXPECT_TRUE(contains(run.err, one.named)) << run.err;
    EXPECT_FALSE(contains(run.err, "Signal: ")) << run.err;
  }
  // What is a rank's own affair may differ.
  EXPECT_EQ(run_two(with, with + "--threads-per-rank 2 --json").status, 0);
  // What the checkpoint says is found before the ranks compare.
  EXPECT_EQ(run_two(with + "--dtype auto", with + "--dtype bf16").status, 0);
}

// Each would be a whole run that writes the same files.
TEST(Run, OneOfSeveralProcessesThatMpiDoesNotBringTogetherRefuses) {
  for (const char* started :
       {"PMI_RANK=1 PMI_SIZE=2", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0",
        "SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_PROCID=0"}) {
    const Scratch scratch;
    const std::string err = scratch.file("stderr"), trace = scratch.file("trace.npy");
    const std::string command = "env " + std::string(started) + " " TRIMTAB_BINARY " run " +
                                kTinyMoe + " --steps 1 --trace-out " + trace + " >/dev/null 2>" +
                                err;
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1) << started;
    EXPECT_TRUE(contains(read_file(err), "a launcher (mpiexec, srun) has started several"))
        << started;
    EXPECT_TRUE(contains(read_file(err), kHasMpi ? "is not the MPI of the launcher" : "libopenmpi"))
        << read_file(err);
    EXPECT_FALSE(std::filesystem::exists(trace));
  }
  // A batch script is one process, and so is one that mpiexec starts alone.
  for (const char* alone :
       {"SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0"}) {
    const std::string command = "env " + std::string(alone) + " " TRIMTAB_BINARY " run " +
                                kTinyMoe + " --steps 1 >/dev/null 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << alone;
  }
}

}  // namespace
}  // namespace trimtab::cli
