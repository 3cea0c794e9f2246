// SPDX-License-Identifier: Apache-2.0
// The readers and writers, a file each. Readers get the whole image and the name for errors, and
// throw FormatError as formats.h says; writers get values that check_writable() let through.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "trimtab/recordings.h"

namespace trimtab {

// As detect_format() of an image that is not compressed.
DetectedFile detect_unpacked(std::span<const std::byte> image, const std::string& file);

Recording read_csv_loads(std::string_view text, const std::string& file,
                         const RecordingOptions& options);
std::string csv_loads(const Recording& recording);

Recording read_top_k_loads(std::string_view text, const std::string& file,
                           const RecordingOptions& options);

Recording read_npy_loads(std::span<const std::byte> image, const std::string& file,
                         const RecordingOptions& options);
std::string npy_loads(const Recording& recording);
PlacementFile read_npy_placement(std::span<const std::byte> image, const std::string& file,
                                 const PlacementOptions& options);
std::string npy_placement(const PlacementFile& placement);

Recording read_json_loads(std::string_view text, const std::string& file,
                          const RecordingOptions& options);
std::string json_loads(const Recording& recording);
PlacementFile read_json_placement(std::string_view text, const std::string& file,
                                  const PlacementOptions& options);
std::string json_placement(const PlacementFile& placement);

Recording read_sglang_loads(std::string_view text, const std::string& file,
                            const RecordingOptions& options);
std::string sglang_loads(const Recording& recording);
PlacementFile read_sglang_placement(std::string_view text, const std::string& file,
                                    const PlacementOptions& options);
std::string sglang_placement(const PlacementFile& placement);

// One rank's safetensors.
Recording read_trtllm_loads(std::span<const std::byte> image, const std::string& file,
                            const RecordingOptions& options);
// All ranks of a folder, summed.
Recording read_trtllm_folder(const std::string& path, const RecordingOptions& options);
std::string trtllm_loads(const Recording& recording);
void write_trtllm_folder(const std::string& path, const Recording& recording);
PlacementFile read_trtllm_placement(std::string_view text, const std::string& file,
                                    const PlacementOptions& options);
std::string trtllm_placement(const PlacementFile& placement);

Recording read_vllm_loads(std::string_view text, const std::string& file,
                          const RecordingOptions& options);
std::string vllm_loads(const Recording& recording);
PlacementFile read_vllm_placement(std::string_view text, const std::string& file,
                                  const PlacementOptions& options);
std::string vllm_placement(const PlacementFile& placement);

PlacementFile read_ascend_placement(std::string_view text, const std::string& file,
                                    const PlacementOptions& options);
std::string ascend_placement(const PlacementFile& placement);

}  // namespace trimtab
