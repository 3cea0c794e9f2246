// SPDX-License-Identifier: Apache-2.0
// The table of formats, and the functions that choose a reader or a writer from it.
#include "trimtab/recordings.h"

#include <array>
#include <filesystem>

#include "base/cat.h"
#include "base/file.h"
#include "recordings/checked_placement.h"
#include "recordings/checked_recording.h"
#include "recordings/content.h"
#include "recordings/ids.h"
#include "recordings/readers.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

struct Format {
  FileFormat format;
  std::string_view name;
  std::string_view about;
  ReadLoads* read_loads;
  WriteLoads* write_loads;
  ReadPlacement* read_placement;
  WritePlacement* write_placement;
};

// In the order of FileFormat.
constexpr Format kFormats[] = {
    {FileFormat::kJson, "json", "Trimtab's JSON", read_json_loads, json_loads, read_json_placement,
     json_placement},
    {FileFormat::kNpy, "npy", "NumPy array; DeepSeek EPLB's weight and phy2log", read_npy_loads,
     npy_loads, read_npy_placement, npy_placement},
    {FileFormat::kCsv, "csv", "layer,expert,count or step,layer,expert,count", read_csv_loads,
     csv_loads, nullptr, nullptr},
    {FileFormat::kTopK, "topk", "text, the chosen experts of each token", read_top_k_loads, nullptr,
     nullptr, nullptr},
    {FileFormat::kSglang, "sglang", "SGLang's stat dump and init-expert-location as JSON",
     read_sglang_loads, sglang_loads, read_sglang_placement, sglang_placement},
    {FileFormat::kTrtllm, "trtllm", "TensorRT-LLM's statistics folder and placement YAML",
     read_trtllm_loads, trtllm_loads, read_trtllm_placement, trtllm_placement},
    {FileFormat::kVllm, "vllm", "vLLM's offline EPLB, JSON lines", read_vllm_loads, vllm_loads,
     read_vllm_placement, vllm_placement},
    {FileFormat::kVllmAscend, "vllm-ascend", "vLLM-Ascend's loads of slots and expert_map.json",
     read_vllm_ascend_loads, nullptr, read_vllm_ascend_placement, vllm_ascend_placement},
};

// Not constexpr: with sanitizers g++ does not compare the address of a function at compile time.
const auto kInfos = [] {
  std::array<FileFormatInfo, std::size(kFormats)> infos{};
  FileFormatInfo* info = infos.data();
  for (const Format& one : kFormats) {
    *info++ = {one.format,
               one.name,
               one.read_loads != nullptr,
               one.write_loads != nullptr,
               one.read_placement != nullptr,
               one.about};
  }
  return infos;
}();

const Format& functions_of(FileFormat format) {
  return kFormats[static_cast<int>(format)];
}

// The names of the formats that `has` holds for, as a list for an error.
template <class Has>
std::string names_of_formats(const Has& has) {
  std::string names;
  for (const FileFormatInfo& one : kInfos)
    if (has(one)) names += cat(names.empty() ? "" : ", ", one.name);
  return names;
}

[[noreturn]] void refuse_placements(FileFormat format) {
  const auto has = [](const FileFormatInfo& one) { return one.placements; };
  throw InvalidArgument(
      cat("format ", name(format), " has no placements; ", names_of_formats(has), " have"));
}

// The format to read: the one that was asked for, else the detected one, which must hold the wanted
// kind.
FileFormat choose(std::optional<FileFormat> asked, const Content& content, FileKind wanted) {
  if (asked) {
    refuse_containers(content);
    return *asked;
  }
  const DetectedFile found = detect_content(content);
  if (found.kind != FileKind::kUnclear && found.kind != wanted) {
    throw FormatError(
        content.file(), 0,
        cat("holds ", wanted == FileKind::kLoads ? "a placement, no loads" : "loads, no placement",
            " (", name(found.format),
            found.format == FileFormat::kNpy ? " of three dimensions" : "", ")"));
  }
  return found.format;
}

void write_text(const std::string& path, const std::string& text) {
  write_file(path, {std::as_bytes(std::span(text))});
}

}  // namespace

std::span<const FileFormatInfo> file_formats() {
  return kInfos;
}

const FileFormatInfo& info(FileFormat format) {
  return kInfos[static_cast<int>(format)];
}

std::string_view name(FileFormat format) {
  return info(format).name;
}

FileFormat file_format(std::string_view name) {
  for (const FileFormatInfo& one : kInfos)
    if (one.name == name) return one.format;
  const std::string known = names_of_formats([](const FileFormatInfo&) { return true; });
  throw InvalidArgument(cat("unknown format ", name, "; known are ", known));
}

Recording parse_recording(std::span<const std::byte> image, const std::string& file,
                          const RecordingOptions& options) {
  check_option("num_experts", options.num_experts, kMaxExperts);
  const Content content(image, file);
  const FileFormat format = choose(options.format, content, FileKind::kLoads);
  Recording recording = functions_of(format).read_loads(content, options);
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
  if (format == FileFormat::kTopK)
    throw InvalidArgument("format topk is read only: counts do not say which token chose what");
  WriteLoads* const write = functions_of(format).write_loads;
  if (write == nullptr) {
    const auto has = [](const FileFormatInfo& one) { return one.writes_loads; };
    throw InvalidArgument(cat("format ", name(format), " is read only for loads; ",
                              names_of_formats(has), " are written"));
  }
  return write(recording);
}

void write_recording(const std::string& path, const Recording& recording, FileFormat format) {
  if (format == FileFormat::kTrtllm) {
    check_writable(recording);
    write_trtllm_folder(path, recording);
    return;
  }
  write_text(path, serialize_recording(recording, format));
}

PlacementFile parse_placement(std::span<const std::byte> image, const std::string& file,
                              const PlacementOptions& options) {
  const Content content(image, file);
  const FileFormat format = choose(options.format, content, FileKind::kPlacement);
  ReadPlacement* const read = functions_of(format).read_placement;
  if (read == nullptr) refuse_placements(format);
  PlacementFile placement = read(content, options);
  placement.format = format;
  return placement;
}

PlacementFile read_placement(const std::string& path, const PlacementOptions& options) {
  return parse_placement(read_file(path), path, options);
}

std::string serialize_placement(const PlacementFile& placement, FileFormat format) {
  check_writable(placement);
  WritePlacement* const write = functions_of(format).write_placement;
  if (write == nullptr) refuse_placements(format);
  return write(placement);
}

void write_placement(const std::string& path, const PlacementFile& placement, FileFormat format) {
  write_text(path, serialize_placement(placement, format));
}

}  // namespace trimtab
