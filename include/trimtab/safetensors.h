// SPDX-License-Identifier: Apache-2.0
// Reading safetensors files, one or several under an index, mapped into memory. All checks of the
// format are made before a tensor is handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trimtab/error.h"
#include "trimtab/tensor.h"

namespace trimtab {

// A tensor inside a mapped file, row-major, little-endian. data points into the map: valid while
// the SafeTensors (or a copy of it) lives. The format does not align tensors: a header of odd
// length shifts all of them, so elements are loaded with memcpy or by MatrixSource::at /
// VectorSource::at, never through a typed pointer.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// One model's tensors. Immutable; may be read by any number of threads. The files are mapped, not
// copied: a file that another process cuts short while it is mapped ends this one with SIGBUS, as
// with every reader that maps; one that is deleted or replaced by rename stays readable.
class SafeTensors {
 public:
  // path: a .safetensors file, an index (.json), or a directory with either (model.safetensors
  // first, then model.safetensors.index.json). Throws FormatError naming file, tensor and offset
  // when a check fails: header length in bounds and <= 100 MB, valid JSON without duplicate names,
  // known dtype, shape x dtype = length (no overflow), offsets contiguous from 0 to the end of the
  // file, no overlap, no hole. The offset of an error is where the tensor's entry stands in the
  // header. Index: each shard is opened once and lies beside the index; every tensor of weight_map
  // must be in its shard. A tensor of a shard that weight_map does not list is there too, as in
  // transformers.
  static SafeTensors open(const std::string& path);

  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  // Throws FormatError naming the checkpoint and the tensor when absent.
  const TensorView& at(std::string_view name) const;
  // As at(), and checks the shape.
  const TensorView& at(std::string_view name, std::span<const int64_t> shape) const;
  // An error about the contents of a tensor that is there, with its file and where its data begins.
  FormatError bad_tensor(std::string_view name, const std::string& what) const;
  std::vector<std::string> names() const;  // sorted
  // The __metadata__ of the file; of an index: of all shards together.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

 private:
  struct File;  // a mapped file
  struct Entry {
    TensorView view;
    const File* file = nullptr;  // one of files_
  };
  void add_file(const std::string& path, const std::map<std::string, std::string>& shard_of,
                const std::string& shard);
  void open_index(const std::string& path);

  std::string path_;
  std::vector<std::shared_ptr<const File>> files_;
  std::map<std::string, Entry, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Checks the header of one safetensors image (the whole file's bytes) and lists its tensors, views
// into the image. For fuzzing and for images that are in memory already; file names the source in
// errors. Checks and errors as in SafeTensors::open. metadata: gets the entries of __metadata__
// that it does not hold yet.
std::map<std::string, TensorView, std::less<>> parse_safetensors(
    std::span<const std::byte> image, const std::string& file,
    std::map<std::string, std::string>* metadata = nullptr);

}  // namespace trimtab
