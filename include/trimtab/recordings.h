// SPDX-License-Identifier: Apache-2.0
// Recorded expert loads and placements in the files of Trimtab and of other engines: read,
// validated, merged and written. docs/formats.md says for every format exactly what is accepted.
// Whatever a file holds, a reader returns a checked value or throws FormatError with the file, the
// byte offset and, for text, the line; no size is taken from a file before the bytes that back it
// are there. A file may be compressed with xz (where the build found liblzma), up to 1 GiB of
// content; errors then count the bytes of the content and leave out the .xz of the name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trimtab/load.h"
#include "trimtab/placement.h"

namespace trimtab {

enum class FileFormat {
  kJson,        // Trimtab's own
  kNpy,         // NumPy arrays: Trimtab's traces, DeepSeek EPLB's weight and phy2log
  kCsv,         // layer,expert,count or step,layer,expert,count
  kTopK,        // one line a token: the chosen experts of each layer; read only
  kSglang,      // stat dump and init-expert-location JSON
  kTrtllm,      // TensorRT-LLM: statistics (meta_info.json, rank*.safetensors) and placement YAML
  kVllm,        // JSON lines of vLLM's offline EPLB (pull request 41141)
  kVllmAscend,  // expert_map.json
};

// What a file holds. A .npy of two dimensions may be either, one of three holds loads.
enum class FileKind { kUnclear, kLoads, kPlacement };

struct FileFormatInfo {
  FileFormat format;
  std::string_view name;  // as on a command line: "json", "vllm-ascend", ...
  bool reads_loads;
  bool writes_loads;
  bool placements;  // reads and writes them
  std::string_view about;
};
std::span<const FileFormatInfo> file_formats();
const FileFormatInfo& info(FileFormat format);
std::string_view name(FileFormat format);
// Throws InvalidArgument with the known names.
FileFormat file_format(std::string_view name);

struct DetectedFile {
  FileFormat format = FileFormat::kJson;
  FileKind kind = FileKind::kUnclear;
};
// Decides by content; where that leaves it open, by the end of the name. Throws FormatError for
// what is none of these, with the way out for PyTorch's files and those compressed with other than
// xz.
DetectedFile detect_format(std::span<const std::byte> image, const std::string& file);
// The same for a path, which may be a folder of TensorRT-LLM statistics. Throws Error when it can't
// be read.
DetectedFile detect_format(const std::string& path);

// Loads with what the engine calls them by.
struct Recording {
  Load load;
  std::vector<int>
      layer_ids;  // [layers] ascending: the engine's numbers, 0, 1, ... where it has none
  std::vector<int64_t> step_ids;                // [steps] ascending, likewise
  std::map<std::string, std::string> metadata;  // e.g. model, num_experts_per_token
  std::string file;                             // where it came from, for messages
  FileFormat format = FileFormat::kJson;        // what it was read as
};

struct RecordingOptions {
  std::optional<FileFormat> format;  // detected when not given
  // Where a file tells only the experts that had tokens, this sets how many there are; where it
  // tells more, the two must agree. 0: the file's own number, or the highest id + 1.
  int num_experts = 0;
  // Top-k text: tokens that make one step, across samples; the last step gets the rest. 0: a step a
  // sample.
  int64_t tokens_per_step = 0;
};

// image: the whole file. Throws FormatError; InvalidArgument for options that are out of range or a
// format without loads. Counts are >= 0 and their sum over everything fits int64.
Recording parse_recording(std::span<const std::byte> image, const std::string& file,
                          const RecordingOptions& options = {});
// A file, or a folder of TensorRT-LLM statistics, whose ranks are summed. Throws Error when it
// can't be read.
Recording read_recording(const std::string& path, const RecordingOptions& options = {});
// The sum of what several ranks recorded. Throws InvalidArgument when there are none, when layers,
// steps or experts differ (with both files), or when a sum exceeds int64.
Recording merge_recordings(std::span<const Recording> parts);

// The image of a file. Throws InvalidArgument for formats that hold no loads or are not written,
// and for shapes that do not fit the counts. TensorRT-LLM: that of rank0.safetensors.
std::string serialize_recording(const Recording& recording, FileFormat format);
// To a new file that replaces path when complete; TensorRT-LLM: to a folder (made if absent), which
// needs metadata["num_experts_per_token"]. Throws as above, and Error on I/O failure.
void write_recording(const std::string& path, const Recording& recording, FileFormat format);

// A placement with what the engine calls its layers.
struct PlacementFile {
  Placement placement;
  std::vector<int> layer_ids;                   // [layers] ascending
  std::map<std::string, std::string> metadata;  // e.g. policy
  FileFormat format = FileFormat::kJson;        // what it was read as
};

struct PlacementOptions {
  std::optional<FileFormat> format;  // detected when not given
  // Ranks with equal slots, or the slots of each. Trimtab's JSON and vLLM-Ascend's say it
  // themselves and must agree; the others need one of the two.
  int num_ranks = 0;
  std::vector<int> slots_per_rank;
  int num_experts = 0;  // 0: the file's own number, or the highest id + 1
};

// Throws FormatError (also when an expert of some layer has no slot) and InvalidArgument for
// options that are missing, out of range or disagree with the file. Two replicas on one rank are no
// error.
PlacementFile parse_placement(std::span<const std::byte> image, const std::string& file,
                              const PlacementOptions& options = {});
PlacementFile read_placement(const std::string& path, const PlacementOptions& options = {});

// Throws InvalidArgument for formats without placements, and for ranks with different numbers of
// slots in formats that can't say so: all but Trimtab's.
std::string serialize_placement(const PlacementFile& placement, FileFormat format);
void write_placement(const std::string& path, const PlacementFile& placement, FileFormat format);

}  // namespace trimtab
