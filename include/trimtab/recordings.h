// SPDX-License-Identifier: Apache-2.0
// Reads, validates, merges and writes recorded expert loads and placements, in the files of Trimtab
// and of other engines. docs/formats.md says for every format exactly what is accepted. Whatever a
// file holds, a reader returns a checked value or throws FormatError with the file, the byte offset
// and, for text, the line. No reader reserves memory for a size that a file states before it has
// seen the bytes. A file may be compressed with xz (where the build found liblzma), up to 1 GiB of
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
#include "trimtab/traffic.h"

namespace trimtab {

enum class FileFormat {
  kJson,        // Trimtab's own
  kNpy,         // NumPy arrays: Trimtab's traces, DeepSeek EPLB's weight and phy2log
  kCsv,         // layer,expert,count or step,layer,expert,count
  kTopK,        // a line for each token with the chosen experts of each layer; read only
  kSglang,      // SGLang's stat dump and its init-expert-location, as JSON
  kTrtllm,      // TensorRT-LLM's statistics (meta_info.json, *rank*.safetensors) and placement YAML
  kVllm,        // JSON lines of vLLM's offline EPLB (pull request 41141)
  kVllmAscend,  // vLLM-Ascend's loads of slots (.npy) and expert_map.json
};

// The kind of content of a file. A .npy of two dimensions may hold either; one of three holds
// loads.
enum class FileKind { kUnclear, kLoads, kPlacement };

struct FileFormatInfo {
  FileFormat format;
  std::string_view name;  // the name on a command line: "json", "vllm-ascend", ...
  bool reads_loads;
  bool writes_loads;
  bool placements;  // whether the format can be read and written as a placement
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
// Decides by the content, and by the end of the name where the content leaves it open. Throws
// FormatError for a file of no known format. The text then says what to do with files of PyTorch
// and those that are compressed otherwise than with xz.
DetectedFile detect_format(std::span<const std::byte> image, const std::string& file);
// The same for a path, which may be a folder of TensorRT-LLM's statistics. Throws Error when it
// can't be read.
DetectedFile detect_format(const std::string& path);

// Loads, and the ids and texts that the engine has for them.
struct Recording {
  Load load;
  // [layers] ascending: the engine's numbers, or 0, 1, ... where the format has none.
  std::vector<int> layer_ids;
  std::vector<int64_t> step_ids;                // [steps] ascending: the same for steps
  std::map<std::string, std::string> metadata;  // e.g. model, num_experts_per_token
  std::string file;                             // the file it was read from, for messages
  FileFormat format = FileFormat::kJson;        // the format it was read as
  // Every n-th token with its picks, at most kMaxSampledTokens of a file. Top-k text and Trimtab's
  // JSON have them, and TensorRT-LLM's folders of raw statistics.
  std::optional<TokenSample> tokens;
  // [steps] what each was for; empty where nobody says. Trimtab's JSON has them.
  std::vector<Phase> phases = {};
};

// The steps of one phase, without the sample of tokens, which is of all steps. Throws
// InvalidArgument for a recording that does not say the phases of its steps, and where no step is
// of this one.
Recording steps_of_phase(const Recording& recording, Phase phase);

struct RecordingOptions {
  std::optional<FileFormat> format;  // detected when not given
  // The number of experts, for formats that list only those that had tokens. In the other formats
  // the file must have this number. 0: the file's own number, or the highest id + 1.
  int num_experts = 0;
  // For the loads of vLLM-Ascend, which count the tokens of slots: the placement that was in use.
  // It must outlive the call.
  const Placement* recorded_under = nullptr;
  // For top-k text: the number of tokens that make one step, across samples. The last step gets the
  // rest. 0: each sample is a step.
  int64_t tokens_per_step = 0;
};

// image: the whole file. Throws FormatError, and InvalidArgument for options that are out of range
// or a format without loads. In the result counts are >= 0 and the sum of them all fits int64.
Recording parse_recording(std::span<const std::byte> image, const std::string& file,
                          const RecordingOptions& options = {});
// Reads a file, or a folder of TensorRT-LLM's statistics, whose ranks are summed. Throws Error when
// it can't be read.
Recording read_recording(const std::string& path, const RecordingOptions& options = {});
// Sums the recordings of several ranks, in order. Where all of them have sampled tokens with
// equally many picks, the sum has them all, with the number of the part as the rank they come from.
// Throws InvalidArgument when there are none, when layers, steps or experts differ (with both
// files), or when a sum exceeds int64.
Recording merge_recordings(std::span<const Recording> parts);

// Returns the image of a file, for TensorRT-LLM that of rank0.safetensors. Throws InvalidArgument
// for formats that hold no loads or are not written, and for shapes that do not fit the counts.
std::string serialize_recording(const Recording& recording, FileFormat format);
// Writes to a new file that replaces path when it is complete. TensorRT-LLM's go to a folder, which
// is made if absent, and need metadata["num_experts_per_token"]. Throws as above, and Error on I/O
// failure.
void write_recording(const std::string& path, const Recording& recording, FileFormat format);

// A placement, and the ids and texts that the engine has for it.
struct PlacementFile {
  Placement placement;
  std::vector<int> layer_ids;                   // [layers] ascending: the engine's numbers
  std::map<std::string, std::string> metadata;  // e.g. policy
  FileFormat format = FileFormat::kJson;        // the format it was read as
};

struct PlacementOptions {
  std::optional<FileFormat> format;  // detected when not given
  // The number of ranks, which then have equally many slots, or the slots of each rank. The files
  // of Trimtab (JSON) and vLLM-Ascend state the ranks and must agree; the others need one of the
  // two.
  int num_ranks = 0;
  std::vector<int> slots_per_rank;
  int num_experts = 0;  // 0: the file's own number, or the highest id + 1
};

// Throws FormatError, also when an expert of some layer has no slot, and InvalidArgument for
// options that are missing, out of range or disagree with the file. Two replicas on one rank are no
// error.
PlacementFile parse_placement(std::span<const std::byte> image, const std::string& file,
                              const PlacementOptions& options = {});
PlacementFile read_placement(const std::string& path, const PlacementOptions& options = {});

// Throws InvalidArgument for formats without placements, and for ranks with different numbers of
// slots in any format but Trimtab's JSON, since the others can't state them.
std::string serialize_placement(const PlacementFile& placement, FileFormat format);
void write_placement(const std::string& path, const PlacementFile& placement, FileFormat format);

}  // namespace trimtab
