// SPDX-License-Identifier: Apache-2.0
// The `trimtab` command: options in, one command run, errors as one line. Exit status 1: it failed;
// 2: wrong usage.
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "base/file.h"
#include "cli/bench/bench_dispatch_options.h"
#include "cli/bench/bench_model_options.h"
#include "cli/bench/bench_nodes_options.h"
#include "cli/bench/bench_options.h"
#include "cli/bench/bench_split_options.h"
#include "cli/options/command.h"
#include "cli/plan/check_options.h"
#include "cli/plan/convert_options.h"
#include "cli/plan/inspect_options.h"
#include "cli/plan/plan_options.h"
#include "cli/plan/replay_options.h"
#include "cli/run/pack.h"
#include "cli/run/run_options.h"
#include "cli/run/verify.h"

namespace {

using trimtab::cli::Command;
using trimtab::cli::CommandLine;

const char* what_must_fit(const std::string& command) {
  if (command == "run") return "the weights, and the keys and values of all sequences in a step,";
  if (command == "pack") return "the weights of a layer";
  if (command == "bench") return "the weights (--cold-mb) and the rows of all tokens";
  return "the loads";
}

int failed(const std::string& what) {
  std::fprintf(stderr, "trimtab: %s\n", what.c_str());
  return 1;
}

int wrong_usage(const std::string& what, const std::string& command) {
  std::fprintf(stderr, "trimtab: %s (see trimtab %s--help)\n", what.c_str(),
               command.empty() ? "" : (command + " ").c_str());
  return 2;
}

// Ctrl-C leaves no half-written file behind.
void end_without_leftovers(int signal) {
  trimtab::remove_unfinished_files();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void handle_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // What the caller has made the process ignore, nohup say, stays ignored.
    if (std::signal(signal, end_without_leftovers) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
}

}  // namespace

int main(int argc, char** argv) {
  handle_signals();
  trimtab::cli::RunOptions run;
  trimtab::cli::PackOptions pack;
  trimtab::cli::VerifyOptions verify;
  trimtab::cli::InspectOptions inspect;
  trimtab::cli::PlanOptions plan;
  trimtab::cli::CheckOptions check;
  trimtab::cli::ConvertOptions convert;
  trimtab::cli::ReplayOptions replay;
  trimtab::cli::BenchOptions bench;
  trimtab::cli::BenchDispatchOptions bench_dispatch;
  trimtab::cli::BenchSplitOptions bench_split;
  trimtab::cli::BenchModelOptions bench_model;
  trimtab::cli::BenchNodesOptions bench_nodes;
  const CommandLine line = trimtab::cli::read_command_line(
      argc, argv,
      "Trimtab runs mixture-of-experts models expert-parallel and plans placements that keep the "
      "ranks level.",
      std::string("trimtab ") + TRIMTAB_VERSION, [&](Command& program) {
        program.footer("\ntrimtab COMMAND --help tells more about a command.");
        add_run(program, run);
        add_pack(program, pack);
        add_verify(program, verify);
        add_inspect(program, inspect);
        add_plan(program, plan);
        add_check(program, check);
        add_convert(program, convert);
        add_replay(program, replay);
        Command bench_command = add_bench(program, bench);
        add_bench_dispatch(bench_command, bench_dispatch);
        add_bench_split(bench_command, bench_split);
        add_bench_model(bench_command, bench_model);
        add_bench_nodes(bench_command, bench_nodes);
      });
  if (!line.wrong.empty()) return wrong_usage(line.wrong, line.command);
  std::fputs(line.help.c_str(), stdout);
  if (!line.body) return 0;
  try {
    line.body();
  } catch (const trimtab::cli::UsageError& error) {
    return wrong_usage(error.what(), line.command);
  } catch (const std::bad_alloc&) {
    return failed(std::string("out of memory: ") + what_must_fit(line.command) + " must fit");
  } catch (const std::exception& error) {
    return failed(error.what());
  }
  return 0;
}
