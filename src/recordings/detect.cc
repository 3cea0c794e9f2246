// SPDX-License-Identifier: Apache-2.0
// Tells formats apart: by the first bytes of a file, the keys of its JSON, or the form of its first
// line.
#include <filesystem>
#include <set>

#include "base/cat.h"
#include "base/file.h"
#include "files/npy_header.h"
#include "files/stand_in.h"
#include "recordings/content.h"
#include "recordings/json_reader.h"
#include "recordings/line_reader.h"
#include "recordings/readers.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

using std::string_view_literals::operator""sv;

// Scans the object for the keys that tell formats apart. The first line is enough for JSON lines.
DetectedFile detect_json(std::string_view text, const std::string& file) {
  JsonReader json(text, file);
  DetectedFile sglang;
  bool found = false;
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    if (key == "record_type") {
      const std::string type = json.string();
      const bool loads = type == "eplb_load_stats" || type == "eplb_load_meta";
      const bool placement = type == "eplb_initial_mapping";
      return {FileFormat::kVllm, loads       ? FileKind::kLoads
                                 : placement ? FileKind::kPlacement
                                             : FileKind::kUnclear};
    }
    if (key == "format") {
      return {FileFormat::kJson,
              json.string() == "trimtab_placement" ? FileKind::kPlacement : FileKind::kLoads};
    }
    if (key == "moe_layer_count" || key == "layer_list")
      return {FileFormat::kVllmAscend, FileKind::kPlacement};
    if (key == "logical_count" || key == "physical_to_logical_map") {
      found = true;
      sglang = {FileFormat::kSglang,
                key == "logical_count" ? FileKind::kLoads : FileKind::kPlacement};
    }
    if (key == "num_experts_per_token") {
      throw FormatError(
          file, 0, "the meta_info.json of TensorRT-LLM's statistics; give the folder it stands in");
    }
    json.skip_value();
  }
  if (found) return sglang;
  throw FormatError(file, 0,
                    "JSON without a key of a known format: format, record_type, logical_count, "
                    "physical_to_logical_map, layer_list");
}

std::optional<DetectedFile> detect_text(std::string_view text, const std::string& file) {
  LineReader lines(text, file);
  while (lines.next()) {
    const std::string_view line = lines.line();
    if (lines.blank() || line.starts_with('#')) continue;
    if (line == "---" || line.starts_with("num_slots:") ||
        line.starts_with("initial_global_assignments:") ||
        line.starts_with("layer_updates_per_iter:")) {
      return DetectedFile{FileFormat::kTrtllm, FileKind::kPlacement};
    }
    if (line.starts_with("S ") || line.find_first_not_of("0123456789| ") == line.npos) {
      return DetectedFile{FileFormat::kTopK, FileKind::kLoads};
    }
    if (line.find_first_not_of("0123456789, \t") == line.npos || line.starts_with("layer") ||
        line.starts_with("step,")) {
      return DetectedFile{FileFormat::kCsv, FileKind::kLoads};
    }
    return std::nullopt;
  }
  return std::nullopt;
}

// Nothing of three dimensions is a placement. Loads of four are those of vLLM-Ascend's slots.
DetectedFile detect_npy(std::span<const std::byte> image, const std::string& file) {
  const size_t dims = parse_npy_header(image, file).shape.size();
  if (dims == 4) return {FileFormat::kVllmAscend, FileKind::kLoads};
  const bool loads = dims == 3;
  return {FileFormat::kNpy, loads ? FileKind::kLoads : FileKind::kUnclear};
}

}  // namespace

void refuse_containers(const Content& content) {
  const std::string_view text = content.text();
  const std::string& file = content.file();
  if (is_xz(content.image())) throw FormatError(file, 0, "compressed with xz twice");
  refuse_stand_in(text, file);
  const struct {
    std::string_view magic;
    const char* what;
  } known[] = {
      {"\x1f\x8b"sv, "compressed with gzip; decompress it first: gzip -dc FILE"},
      {"\x28\xb5\x2f\xfd"sv, "compressed with zstd; decompress it first: zstd -dc FILE"},
      {"BZh"sv, "compressed with bzip2; decompress it first: bzip2 -dc FILE"},
      {"\x04\x22\x4d\x18"sv, "compressed with lz4; decompress it first: lz4 -dc FILE"},
      {"PK\x03\x04"sv,
       "a zip archive. PyTorch's .pt is read by Trimtab's Python package; NumPy's .npz is not "
       "read, "
       "since it holds several arrays: save the one as .npy"},
      {"\x80\x02"sv, "a pickle; Trimtab's Python package reads PyTorch's .pt"},
      {"\x89HDF"sv, "an HDF5 file, which is not read"},
      {"PAR1"sv, "a Parquet file, which is not read"},
      {"\xff\xfe"sv, "text in UTF-16; save it as UTF-8"},
      {"\xfe\xff"sv, "text in UTF-16; save it as UTF-8"},
  };
  for (const auto& [magic, what] : known)
    if (text.starts_with(magic)) throw FormatError(file, 0, what);
}

DetectedFile detect_format(std::span<const std::byte> image, const std::string& file) {
  return detect_content(Content(image, file));
}

DetectedFile detect_content(const Content& content) {
  const std::string_view text = content.text();
  const std::string& file = content.file();
  if (text.empty()) throw FormatError(file, 0, "an empty file");
  refuse_containers(content);
  if (text.starts_with("\x93NUMPY")) return detect_npy(content.image(), file);
  if (text.size() > 8 && text[8] == '{' && text[7] == '\0')
    return {FileFormat::kTrtllm, FileKind::kLoads};
  const size_t first = text.find_first_not_of(" \t\r\n", begin_of_text(text));
  if (first != text.npos && text[first] == '{') return detect_json(text, file);
  if (const auto found = detect_text(text, file)) return *found;
  for (const auto& [end, found] :
       {std::pair(".csv", DetectedFile{FileFormat::kCsv, FileKind::kLoads}),
        {".yaml", {FileFormat::kTrtllm, FileKind::kPlacement}},
        {".yml", {FileFormat::kTrtllm, FileKind::kPlacement}},
        {".topk.txt", {FileFormat::kTopK, FileKind::kLoads}}}) {
    if (file.ends_with(end)) return found;
  }
  std::string known;
  for (const FileFormatInfo& one : file_formats())
    known += cat(known.empty() ? "" : ", ", one.name);
  throw FormatError(file, 0, cat("of no known format; known are ", known));
}

DetectedFile detect_format(const std::string& path) {
  std::error_code unreadable;  // read_file() says why
  if (std::filesystem::is_directory(path, unreadable))
    return {FileFormat::kTrtllm, FileKind::kLoads};
  return detect_format(read_file(path), path);
}

}  // namespace trimtab
