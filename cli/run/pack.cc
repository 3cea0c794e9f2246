// SPDX-License-Identifier: Apache-2.0
#include "cli/run/pack.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/cores.h"
#include "cli/output/line_printer.h"
#include "cli/output/output.h"
#include "cli/output/text.h"
#include "cli/run/loading.h"
#include "trimtab/packed_model.h"

namespace trimtab::cli {

namespace {

constexpr const char* kPackFooter = R"(
What it does. Reads the weights of MODEL, packs them in the formats that the options name, and
writes them to the folder OUT in the layout of this machine's kernels, with config.json and the
tokenizer's files beside them. `trimtab run OUT` maps the files and packs nothing; its results are
those of `trimtab run MODEL` with the same options, bit for bit. One layer at a time is in memory.

OUT is for machines whose kernels read panels of the same width: packed with AVX-512 it runs on any
CPU with AVX-512. Elsewhere it is refused; pack MODEL again there. docs/checkpoints.md says what is
in the files.

Exit status: 0 done, 1 it failed, 2 wrong usage. TRIMTAB_ISA chooses the kernels
(docs/embedding.md).

Examples
  trimtab pack Qwen3-30B-A3B qwen3-w4a8 --dtype bf16 --weights w8a8 --experts w4a8
  trimtab run qwen3-w4a8 --token-ids "785,6722,315"
)";

}  // namespace

void pack(const PackOptions& options) {
  LinePrinter printer;
  LoadingLine line("packing " + options.model, printer);
  WeightFormatOptions formats = options.formats;
  if (formats.dtype == "auto")
    find_dtype(formats, SafeTensors::open(options.model), read_model_config(options.model));
  const PackedModel packed = pack_model(
      options.model, options.out, decoder_formats(formats),
      [&](const LoadProgress& progress) { line.show(progress); },
      options.threads > 0 ? options.threads : usable_cores().count);
  printer.finish("packed " + options.model);
  const std::string dtype = name(WeightFormat(packed.formats.dtype));
  const std::string linear = name(*packed.formats.linear), experts = name(*packed.formats.experts);
  if (options.json) {
    const nlohmann::ordered_json report = {{"model", valid_utf8(options.model)},
                                           {"out", valid_utf8(options.out)},
                                           {"dtype", dtype},
                                           {"linear", linear},
                                           {"experts", experts},
                                           {"isa", kernel_isa()},
                                           {"bytes", packed.bytes},
                                           {"files", packed.files},
                                           {"seconds", line.seconds()}};
    return print_report(report.dump(1) + "\n");
  }
  print_report(fmt::format(
      "{} -> {}: {:.3f} GB in {} files, {}, attention and head in {}, experts in {}, for {}; "
      "{:.1f} s\n",
      printable(valid_utf8(options.model)), printable(valid_utf8(options.out)),
      static_cast<double>(packed.bytes) / 1e9, packed.files, dtype, linear, experts, kernel_isa(),
      line.seconds()));
}

void add_pack(Command& program, PackOptions& options) {
  Command command =
      program.add("pack", "Write a model's weights as the kernels read them, to load them at once");
  command.text("MODEL", options.model, "Directory of the model (Hugging Face layout)")
      .required()
      .type("");
  command.text("OUT", options.out, "Directory to write; it holds no model yet").required().type("");
  add_weight_formats(command, options.formats);
  command.number("--threads", options.threads, "Threads that pack [a thread on every core]")
      .between(1, 1024);
  command.flag("--json", options.json, "One JSON object on standard output instead of text");
  command.footer(kPackFooter);
  command.runs([&options] { pack(options); });
}

}  // namespace trimtab::cli
