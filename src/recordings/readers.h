// SPDX-License-Identifier: Apache-2.0
// The readers and writers of all formats, each in a file of its name. A reader throws FormatError
// as recordings.h says. A writer gets a value that check_writable() let through.
#pragma once

#include <string>

#include "recordings/content.h"
#include "trimtab/recordings.h"

namespace trimtab {

using ReadLoads = Recording(const Content&, const RecordingOptions&);
using WriteLoads = std::string(const Recording&);
using ReadPlacement = PlacementFile(const Content&, const PlacementOptions&);
using WritePlacement = std::string(const PlacementFile&);

// Throws FormatError, with the way out, for content that begins as no format does: a compressed
// file, an archive, UTF-16, or a text that stands in the place of the data.
void refuse_containers(const Content& content);
// What detect_format() says about content that is unpacked.
DetectedFile detect_content(const Content& content);

ReadLoads read_csv_loads;
WriteLoads csv_loads;

ReadLoads read_top_k_loads;

ReadLoads read_npy_loads;
WriteLoads npy_loads;
ReadPlacement read_npy_placement;
WritePlacement npy_placement;

ReadLoads read_json_loads;
WriteLoads json_loads;
ReadPlacement read_json_placement;
WritePlacement json_placement;

ReadLoads read_sglang_loads;
WriteLoads sglang_loads;
ReadPlacement read_sglang_placement;
WritePlacement sglang_placement;

// The safetensors of one rank. A folder holds those of all ranks, which are summed.
ReadLoads read_trtllm_loads;
WriteLoads trtllm_loads;
Recording read_trtllm_folder(const std::string& path, const RecordingOptions& options);
void write_trtllm_folder(const std::string& path, const Recording& recording);
ReadPlacement read_trtllm_placement;
WritePlacement trtllm_placement;

ReadLoads read_vllm_loads;
WriteLoads vllm_loads;
ReadPlacement read_vllm_placement;
WritePlacement vllm_placement;

ReadLoads read_vllm_ascend_loads;
ReadPlacement read_vllm_ascend_placement;
WritePlacement vllm_ascend_placement;

}  // namespace trimtab
