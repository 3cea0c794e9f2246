// SPDX-License-Identifier: Apache-2.0
// Binds the readers and writers of recordings and placements. numpy reads arrays from .npy itself;
// these functions read the loads or the placement that a file holds.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>

#include "planning.h"
#include "trimtab/recordings.h"

namespace trimtab::python {
namespace {

using Metadata = std::map<std::string, std::string>;

std::optional<FileFormat> format_or_any(const std::optional<std::string>& name) {
  return name ? std::optional(file_format(*name)) : std::nullopt;
}

void bind_recording(nb::module_& m) {
  nb::class_<Recording>(m, "Recording",
                        R"(Loads, and the ids and texts that the engine has for them.

load: Load. layer_ids: [layers] ascending, step_ids: [steps] ascending; 0, 1, ... when left out.
metadata: texts, e.g. model, num_experts_per_token. file: the file it was read from, for messages.
Raises ValueError when sizes do not fit.)")
      .def(
          "__init__",
          [](Recording* self, const Load& load, std::optional<std::vector<int>> layer_ids,
             std::optional<std::vector<int64_t>> step_ids, Metadata metadata, std::string file) {
            new (self) Recording{load,
                                 ids_or_counted(std::move(layer_ids), load.num_layers, "layer_ids"),
                                 ids_or_counted(std::move(step_ids), load.num_steps, "step_ids"),
                                 std::move(metadata),
                                 std::move(file),
                                 FileFormat::kJson};
          },
          nb::arg("load"), nb::arg("layer_ids") = nb::none(), nb::arg("step_ids") = nb::none(),
          nb::arg("metadata") = Metadata(), nb::arg("file") = "")
      .def_prop_ro(
          "load", [](const Recording& r) -> const Load& { return r.load; },
          nb::rv_policy::reference_internal)
      .def_ro("layer_ids", &Recording::layer_ids, "[layers]")
      .def_ro("step_ids", &Recording::step_ids, "[steps]")
      .def_prop_ro(
          "phases",
          [](const Recording& r) {
            std::vector<std::string> phases;
            for (const Phase phase : r.phases)
              phases.emplace_back(phase == Phase::kPrefill ? "prefill" : "decode");
            return phases;
          },
          "[steps] prefill or decode; empty where the file does not say.")
      .def_ro("metadata", &Recording::metadata)
      .def_ro("file", &Recording::file)
      .def_prop_ro(
          "format", [](const Recording& r) { return std::string(name(r.format)); },
          "The format it was read as.")
      .def(
          "write",
          [](const Recording& r, const std::filesystem::path& path, const std::string& format) {
            const nb::gil_scoped_release release;
            write_recording(path.string(), r, file_format(format));
          },
          nb::arg("path"), nb::arg("format") = "json",
          R"(Writes the loads in one of the formats of docs/formats.md.

Replaces the file when the new one is complete; trtllm makes a folder. Raises ValueError for formats
that are not written, RuntimeError when the file can't be written.)")
      .def("__repr__", [](const Recording& r) {
        return cat("Recording(", r.file.empty() ? "" : r.file + ", ", r.load.num_steps,
                   r.load.num_steps == 1 ? " step, " : " steps, ", r.load.num_layers, " layers of ",
                   r.load.num_experts, " experts)");
      });
  m.def(
      "read_recording",
      [](const std::filesystem::path& path, const std::optional<std::string>& format,
         int num_experts, int64_t tokens_per_step) {
        const nb::gil_scoped_release release;
        return read_recording(path.string(), {.format = format_or_any(format),
                                              .num_experts = num_experts,
                                              .tokens_per_step = tokens_per_step});
      },
      nb::arg("path"), nb::kw_only(), nb::arg("format") = nb::none(), nb::arg("num_experts") = 0,
      nb::arg("tokens_per_step") = 0,
      "One file, or a folder of TensorRT-LLM statistics; see trimtab.read_recording.");
  m.def(
      "merge_recordings",
      [](const std::vector<Recording>& parts) { return merge_recordings(parts); }, nb::arg("parts"),
      R"(Sums the recordings of several ranks.

Raises ValueError when there are none, when layers, steps or experts differ, or when a sum exceeds
63 bits.)");
}

void bind_placement_file(nb::module_& m) {
  nb::class_<PlacementFile>(m, "PlacementFile",
                            R"(A Placement, and the ids and texts that the engine has for it.

layer_ids: [layers] ascending; 0, 1, ... when left out. metadata: texts, e.g. policy.)")
      .def(
          "__init__",
          [](PlacementFile* self, const Placement& placement,
             std::optional<std::vector<int>> layer_ids, Metadata metadata) {
            new (self) PlacementFile{
                placement,
                ids_or_counted(std::move(layer_ids), placement.num_layers(), "layer_ids"),
                std::move(metadata), FileFormat::kJson};
          },
          nb::arg("placement"), nb::arg("layer_ids") = nb::none(), nb::arg("metadata") = Metadata())
      .def_prop_ro(
          "placement", [](const PlacementFile& p) -> const Placement& { return p.placement; },
          nb::rv_policy::reference_internal)
      .def_ro("layer_ids", &PlacementFile::layer_ids, "[layers]")
      .def_ro("metadata", &PlacementFile::metadata)
      .def_prop_ro(
          "format", [](const PlacementFile& p) { return std::string(name(p.format)); },
          "The format it was read as.")
      .def(
          "write",
          [](const PlacementFile& p, const std::filesystem::path& path, const std::string& format) {
            write_placement(path.string(), p, file_format(format));
          },
          nb::arg("path"), nb::arg("format") = "json", R"(Writes it for an engine (docs/formats.md).

Replaces the file when the new one is complete. Raises ValueError for formats without placements,
and for ranks with different numbers of slots in formats that can't state them, RuntimeError when
the file can't be written.)");
  m.def(
      "read_placement",
      [](const std::filesystem::path& path, const std::optional<std::string>& format, int num_ranks,
         std::vector<int> slots_per_rank, int num_experts) {
        return read_placement(path.string(), {format_or_any(format), num_ranks,
                                              std::move(slots_per_rank), num_experts});
      },
      nb::arg("path"), nb::kw_only(), nb::arg("format") = nb::none(), nb::arg("num_ranks") = 0,
      nb::arg("slots_per_rank") = std::vector<int>(), nb::arg("num_experts") = 0,
      R"(Reads a placement from a file.

format: detected when left out. num_ranks (equally many slots each) or slots_per_rank: needed for
all formats but json and vllm-ascend, which state them. num_experts: the file's own number, or the
highest id + 1, when left out. Raises ValueError (FormatError, with the byte, for a fault in the
file), RuntimeError when it can't be read.)");
}

}  // namespace

void bind_formats(nb::module_& m) {
  bind_recording(m);
  bind_placement_file(m);
  nb::class_<FileFormatInfo>(m, "FileFormat",
                             "A format and what it can hold; docs/formats.md describes them.")
      .def_prop_ro("name", [](const FileFormatInfo& f) { return std::string(f.name); })
      .def_ro("reads_loads", &FileFormatInfo::reads_loads)
      .def_ro("writes_loads", &FileFormatInfo::writes_loads)
      .def_ro("placements", &FileFormatInfo::placements,
              "Whether the format can be read and written as a placement.")
      .def_prop_ro("about", [](const FileFormatInfo& f) { return std::string(f.about); })
      .def("__repr__",
           [](const FileFormatInfo& f) { return cat("FileFormat(", f.name, ": ", f.about, ")"); });
  m.def("file_formats",
        [] { return std::vector<FileFormatInfo>(file_formats().begin(), file_formats().end()); });
}

}  // namespace trimtab::python
