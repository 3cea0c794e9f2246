// SPDX-License-Identifier: Apache-2.0
#include "trimtab/recordings.h"

#include <filesystem>

#include "base/cat.h"
#include "base/file.h"
#include "recordings/readers.h"
#include "recordings/tables.h"
#include "recordings/unpacked.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr FileFormatInfo kFormats[] = {
    {FileFormat::kJson, "json", true, true, true, "Trimtab's JSON"},
    {FileFormat::kNpy, "npy", true, true, true, "NumPy array; DeepSeek EPLB's weight and phy2log"},
    {FileFormat::kCsv, "csv", true, true, false, "layer,expert,count or step,layer,expert,count"},
    {FileFormat::kTopK, "topk", true, false, false, "text, the chosen experts of each token"},
    {FileFormat::kSglang, "sglang", true, true, true,
     "SGLang's stat dump and init-expert-location as JSON"},
    {FileFormat::kTrtllm, "trtllm", true, true, true,
     "TensorRT-LLM's statistics folder and placement YAML"},
    {FileFormat::kVllm, "vllm", true, true, true, "vLLM's offline EPLB, JSON lines"},
    {FileFormat::kVllmAscend, "vllm-ascend", false, false, true, "vLLM-Ascend's expert_map.json"},
};

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Which format to read, checked against what the content is known to be.
FileFormat choose(std::optional<FileFormat> asked, std::span<const std::byte> image,
                  const std::string& file, FileKind wanted) {
  if (asked) return *asked;
  const DetectedFile found = detect_unpacked(image, file);
  if (found.kind != FileKind::kUnclear && found.kind != wanted) {
    throw FormatError(
        file, 0,
        cat("holds ", wanted == FileKind::kLoads ? "a placement, no loads" : "loads, no placement",
            " (", name(found.format),
            found.format == FileFormat::kNpy ? " of three dimensions" : "", ")"));
  }
  return found.format;
}

[[noreturn]] void refuse(FileFormat format, const char* what) {
  std::string known;
  for (const FileFormatInfo& one : kFormats) {
    const bool has = std::string_view(what) == "loads" ? one.reads_loads : one.placements;
    if (has) known += cat(known.empty() ? "" : ", ", one.name);
  }
  throw InvalidArgument(cat("format ", name(format), " has no ", what, "; ", known, " have"));
}

// content: not compressed.
Recording read_loads(FileFormat format, std::span<const std::byte> content, const std::string& file,
                     const RecordingOptions& options) {
  switch (format) {
    case FileFormat::kJson:
      return read_json_loads(text_of(content), file, options);
    case FileFormat::kNpy:
      return read_npy_loads(content, file, options);
    case FileFormat::kCsv:
      return read_csv_loads(text_of(content), file, options);
    case FileFormat::kTopK:
      return read_top_k_loads(text_of(content), file, options);
    case FileFormat::kSglang:
      return read_sglang_loads(text_of(content), file, options);
    case FileFormat::kTrtllm:
      return read_trtllm_loads(content, file, options);
    case FileFormat::kVllm:
      return read_vllm_loads(text_of(content), file, options);
    case FileFormat::kVllmAscend:
      break;
  }
  refuse(format, "loads");
}

PlacementFile read_map(FileFormat format, std::span<const std::byte> content,
                       const std::string& file, const PlacementOptions& options) {
  switch (format) {
    case FileFormat::kJson:
      return read_json_placement(text_of(content), file, options);
    case FileFormat::kNpy:
      return read_npy_placement(content, file, options);
    case FileFormat::kSglang:
      return read_sglang_placement(text_of(content), file, options);
    case FileFormat::kTrtllm:
      return read_trtllm_placement(text_of(content), file, options);
    case FileFormat::kVllm:
      return read_vllm_placement(text_of(content), file, options);
    case FileFormat::kVllmAscend:
      return read_ascend_placement(text_of(content), file, options);
    case FileFormat::kCsv:
    case FileFormat::kTopK:
      break;
  }
  refuse(format, "placements");
}

}  // namespace

std::span<const FileFormatInfo> file_formats() {
  return kFormats;
}

const FileFormatInfo& info(FileFormat format) {
  return kFormats[static_cast<size_t>(format)];
}

std::string_view name(FileFormat format) {
  return info(format).name;
}

FileFormat file_format(std::string_view name) {
  std::string known;
  for (const FileFormatInfo& one : kFormats) {
    if (one.name == name) return one.format;
    known += cat(known.empty() ? "" : ", ", one.name);
  }
  throw InvalidArgument(cat("unknown format ", name, "; known are ", known));
}

Recording parse_recording(std::span<const std::byte> image, const std::string& file,
                          const RecordingOptions& options) {
  if (options.num_experts < 0 || options.num_experts > kMaxExperts) {
    throw InvalidArgument(cat("num_experts ", options.num_experts, ": must be 0 to ", kMaxExperts));
  }
  const Unpacked content(image, file);
  const FileFormat format =
      choose(options.format, content.image(), content.file(), FileKind::kLoads);
  Recording recording = read_loads(format, content.image(), content.file(), options);
  recording.file = file;
  recording.format = format;
  return recording;
}

Recording read_recording(const std::string& path, const RecordingOptions& options) {
  std::error_code unreadable;  // read_file() says why
  if (!std::filesystem::is_directory(path, unreadable))
    return parse_recording(read_file(path), path, options);
  if (options.format.value_or(FileFormat::kTrtllm) != FileFormat::kTrtllm) {
    throw InvalidArgument(cat(path, ": a folder; only TensorRT-LLM's statistics are one"));
  }
  Recording recording = read_trtllm_folder(path, options);
  recording.format = FileFormat::kTrtllm;
  return recording;
}

std::string serialize_recording(const Recording& recording, FileFormat format) {
  check_writable(recording);
  switch (format) {
    case FileFormat::kJson:
      return json_loads(recording);
    case FileFormat::kNpy:
      return npy_loads(recording);
    case FileFormat::kCsv:
      return csv_loads(recording);
    case FileFormat::kSglang:
      return sglang_loads(recording);
    case FileFormat::kTrtllm:
      return trtllm_loads(recording);
    case FileFormat::kVllm:
      return vllm_loads(recording);
    case FileFormat::kTopK:
      throw InvalidArgument("format topk is read only: counts do not say which token chose what");
    case FileFormat::kVllmAscend:
      break;
  }
  refuse(format, "loads");
}

void write_recording(const std::string& path, const Recording& recording, FileFormat format) {
  if (format == FileFormat::kTrtllm) {
    check_writable(recording);
    write_trtllm_folder(path, recording);
    return;
  }
  write_file(path, {bytes_of(serialize_recording(recording, format))});
}

PlacementFile parse_placement(std::span<const std::byte> image, const std::string& file,
                              const PlacementOptions& options) {
  const Unpacked content(image, file);
  const FileFormat format =
      choose(options.format, content.image(), content.file(), FileKind::kPlacement);
  PlacementFile placement = read_map(format, content.image(), content.file(), options);
  placement.format = format;
  return placement;
}

PlacementFile read_placement(const std::string& path, const PlacementOptions& options) {
  return parse_placement(read_file(path), path, options);
}

std::string serialize_placement(const PlacementFile& placement, FileFormat format) {
  check_writable(placement);
  switch (format) {
    case FileFormat::kJson:
      return json_placement(placement);
    case FileFormat::kNpy:
      return npy_placement(placement);
    case FileFormat::kSglang:
      return sglang_placement(placement);
    case FileFormat::kTrtllm:
      return trtllm_placement(placement);
    case FileFormat::kVllm:
      return vllm_placement(placement);
    case FileFormat::kVllmAscend:
      return ascend_placement(placement);
    case FileFormat::kCsv:
    case FileFormat::kTopK:
      break;
  }
  refuse(format, "placements");
}

void write_placement(const std::string& path, const PlacementFile& placement, FileFormat format) {
  write_file(path, {bytes_of(serialize_placement(placement, format))});
}

}  // namespace trimtab
