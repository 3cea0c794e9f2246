// SPDX-License-Identifier: Apache-2.0
// Reads safetensors files, one or several under an index, which are mapped into memory. All checks
// of the format are made before a caller gets a tensor.
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

// A tensor inside a mapped file, row-major, little-endian. data points into the mapped file, which
// lives as long as the SafeTensors or a copy of it. The format does not align tensors: a header of
// odd length shifts all of them, so elements are loaded with memcpy or by MatrixSource::at /
// VectorSource::at, never through a typed pointer.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// The tensors of one model. It is immutable and may be read by any number of threads. The files are
// mapped, not copied. If another process cuts a mapped file short, this process ends with SIGBUS,
// as with every reader that maps. A file that is deleted or replaced by rename stays readable.
class SafeTensors {
 public:
  // path: a .safetensors file, an index (.json), or a directory with either (model.safetensors
  // first, then model.safetensors.index.json, then the index of packed_model.h). Throws FormatError
  // naming file, tensor and offset when a check fails: header length in bounds and <= 100 MB, valid
  // JSON without duplicate names, known dtype, shape x dtype = length (no overflow), offsets
  // contiguous from 0 to the end of the file, no overlap, no hole. The offset of an error is where
  // the tensor's entry stands in the header. Index: each shard is opened once and lies beside the
  // index; every tensor of weight_map must be in its shard. A tensor that is in a shard but not in
  // weight_map can be read too, as in transformers.
  static SafeTensors open(const std::string& path);

  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  // Throws FormatError naming the checkpoint and the tensor when absent.
  const TensorView& at(std::string_view name) const;
  // The same, with a check of the shape.
  const TensorView& at(std::string_view name, std::span<const int64_t> shape) const;
  // Makes an error about the contents of a tensor, with its file and the first byte of its data.
  FormatError bad_tensor(std::string_view name, const std::string& what) const;
  std::vector<std::string> names() const;  // sorted
  // The __metadata__ of the file, or of all shards of an index together.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The same, file by file.
  struct FileMetadata {
    std::string path;
    std::map<std::string, std::string> metadata;
  };
  std::span<const FileMetadata> metadata_of_files() const { return file_metadata_; }
  const std::string& path() const { return path_; }

  // Maps these bytes of a tensor now, reading them from disk where the page cache does not have
  // them, in huge pages where the system keeps files in such. Without it every page waits until it
  // is first touched. A hint: a failure costs time only.
  static void bring_in(std::span<const std::byte> bytes);
  // Unmaps all pages, so that the process no longer holds memory for what has been read; a page
  // that is touched again is mapped again, from the page cache or from disk. Other threads may read
  // meanwhile.
  void release_pages() const;

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
  std::vector<FileMetadata> file_metadata_;
};

// Checks the header of one safetensors image (all bytes of a file) and returns its tensors, which
// are views into the image. It serves the fuzzer and images that are in memory already. file: the
// name of the source in errors. Checks and errors are those of SafeTensors::open. metadata: gets
// the entries of __metadata__ that it does not hold yet.
std::map<std::string, TensorView, std::less<>> parse_safetensors(
    std::span<const std::byte> image, const std::string& file,
    std::map<std::string, std::string>* metadata = nullptr);

}  // namespace trimtab
