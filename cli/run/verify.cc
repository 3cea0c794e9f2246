// SPDX-License-Identifier: Apache-2.0
#include "cli/run/verify.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/cores.h"
#include "cli/output/line_printer.h"
#include "cli/output/output.h"
#include "cli/output/text.h"
#include "trimtab/packed_model.h"

namespace trimtab::cli {

namespace {

constexpr const char* kVerifyFooter = R"(
What it does. Reads all files of the packed model MODEL (trimtab pack) and compares each tensor with
the checksum in its file's header. Loading a packed model maps the files and compares nothing, so a
bit that was lost on a disk or on the way to another machine goes unnoticed there.

Exit status: 0 all are as they were written, 1 some are not, or it failed, 2 wrong usage.

Example
  trimtab verify qwen3-w4a8
)";

}  // namespace

void verify(const VerifyOptions& options) {
  LinePrinter printer;
  const auto start = std::chrono::steady_clock::now();
  const SafeTensors tensors = SafeTensors::open(options.model);
  const CheckedModel checked = check_packed_model(
      tensors, options.threads > 0 ? options.threads : usable_cores().count, [&](size_t bytes) {
        if (printer.wants_status()) {
          printer.status(fmt::format("verifying {}: {:.2f} GB", options.model,
                                     1e-9 * static_cast<double>(bytes)));
        }
      });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  printer.finish("verified " + options.model);
  if (options.json) {
    const nlohmann::ordered_json report = {{"model", valid_utf8(options.model)},
                                           {"tensors", checked.tensors},
                                           {"bytes", checked.bytes},
                                           {"seconds", seconds}};
    return print_report(report.dump(1) + "\n");
  }
  print_report(fmt::format("{}: {} tensors, {:.3f} GB, all as they were written; {:.1f} s\n",
                           printable(valid_utf8(options.model)), checked.tensors,
                           1e-9 * static_cast<double>(checked.bytes), seconds));
}

void add_verify(Command& program, VerifyOptions& options) {
  Command command =
      program.add("verify", "Compare the files of a packed model with their checksums");
  command.text("MODEL", options.model, "Directory of the packed model").required().type("");
  command.number("--threads", options.threads, "Threads that compare [a thread on every core]")
      .between(1, 1024);
  command.flag("--json", options.json, "One JSON object on standard output instead of text");
  command.footer(kVerifyFooter);
  command.runs([&options] { verify(options); });
}

}  // namespace trimtab::cli
