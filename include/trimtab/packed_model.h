// SPDX-License-Identifier: Apache-2.0
// A packed model is a model folder whose weights lie in its files as the kernels read them.
// DecoderWeights::load() maps such files and packs nothing: they are ready as soon as they are in
// the page cache, and processes of one host share that memory. docs/checkpoints.md describes the
// files.
//
// The kernels read the mapped pages and never write them. Experts that move (ExpertSlots) are
// copied into memory of the rank's own first, so a migration never touches the file or the mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "trimtab/decoder.h"

namespace trimtab {

// The formats that a packed model's weights have; none where the tensors are those of a checkpoint.
// Throws FormatError for a packed model that this build can't read: of another version, or with
// panels for kernels of another width than those of kernel_isa(). The message says what to do.
std::optional<DecoderFormats> packed_formats(const SafeTensors& tensors);

struct PackedModel {
  DecoderFormats formats;
  size_t bytes = 0;  // size of the packed weights
  int files = 0;     // files of weights
};

// Packs the model in folder `from` for the kernels of kernel_isa() and writes it to folder `to`,
// which is made where it is not there: the weights, a file for each layer, and config.json,
// generation_config.json, the files of tokenizers and prompts.txt as they are. One layer at a time
// is in memory. The index comes last, so that an interrupted call leaves no model behind. progress,
// threads: as in LoadOptions. Throws as DecoderWeights::load() does, InvalidArgument where `to`
// holds a model already or `from` is a packed one, and Error when a file can't be written.
PackedModel pack_model(const std::string& from, const std::string& to,
                       const DecoderFormats& formats,
                       const std::function<void(const LoadProgress&)>& progress = {},
                       int threads = 1);

struct CheckedModel {
  int64_t tensors = 0;
  size_t bytes = 0;
};

// Compares the contents of a packed model's files with the checksums in their headers, which
// nothing does when it is loaded: it reads all of them. threads: compute, the caller's included.
// progress: called after each tensor, by any of them, one at a time, with the bytes read so far.
// Throws FormatError for a tensor that differs, or has no checksum, with its file and the first
// byte of its data, and InvalidArgument where the tensors are not those of a packed model.
CheckedModel check_packed_model(const SafeTensors& tensors, int threads = 1,
                                const std::function<void(size_t bytes)>& progress = {});

}  // namespace trimtab
