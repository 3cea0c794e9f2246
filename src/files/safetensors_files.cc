// SPDX-License-Identifier: Apache-2.0
// Maps the files of a checkpoint into memory and puts shards together under their index.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/cat.h"
#include "files/json.h"
#include "files/safetensors_writer.h"
#include "trimtab/safetensors.h"

namespace trimtab {
namespace fs = std::filesystem;

namespace {

// What madvise() takes: whole pages, with all that they share with neighbours.
struct Pages {
  explicit Pages(std::span<const std::byte> bytes) {
    static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto first = reinterpret_cast<uintptr_t>(bytes.data());
    begin = const_cast<std::byte*>(bytes.data()) - first % page;
    size = bytes.size() + first % page;
  }
  void* begin;
  size_t size;
};

}  // namespace

struct SafeTensors::File {
  explicit File(std::string path_to_map);
  ~File() {
    if (!bytes.empty()) ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::string path;
  std::span<const std::byte> bytes;
};

SafeTensors::File::File(std::string path_to_map) : path(std::move(path_to_map)) {
  const auto fail = [this](const char* doing) {
    throw FormatError(path, -1, cat(doing, ": ", std::strerror(errno)));
  };
  // Without O_NONBLOCK a pipe in the place of a file would wait for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail("can't be opened");
  struct Close {
    int descriptor;
    ~Close() { ::close(descriptor); }
  } const close{descriptor};  // the mapping outlives its descriptor
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) fail("can't be read");
  if (!S_ISREG(status.st_mode)) throw FormatError(path, -1, "is not a regular file");
  const size_t size = status.st_size;
  if (size == 0) return;  // an empty file can't be mapped, and the parser refuses it
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (mapped == MAP_FAILED) fail("can't be mapped");
  bytes = {static_cast<const std::byte*>(mapped), size};
}

namespace {

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += cat(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

// Reads weight_map of an index, which has the shard of each tensor.
std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const nlohmann::json index = read_json(path);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw FormatError(path, -1, "has no object 'weight_map'");
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, value] : index["weight_map"].items()) {
    if (!value.is_string())
      throw FormatError(path, -1, cat("tensor '", tensor, "': the shard's name is no string"));
    const auto& shard = value.get_ref<const std::string&>();
    // An index may come from anywhere, so it must not choose which files are opened here: it can
    // only name files beside it.
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string_view("/\\\0", 3)) != shard.npos) {
      throw FormatError(
          path, -1,
          cat("tensor '", tensor, "': the shard's name is not that of a file beside the index: '",
              shard, "'"));
    }
    shard_of.emplace(tensor, shard);
  }
  return shard_of;
}

// Returns the file to open for the path that the caller gave.
fs::path checkpoint_file(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  for (const char* name :
       {"model.safetensors", "model.safetensors.index.json", kPackedModelIndex}) {
    if (fs::exists(path / name, ignored)) return path / name;
  }
  throw FormatError(path.string(), -1,
                    "holds neither model.safetensors nor model.safetensors.index.json");
}

}  // namespace

SafeTensors SafeTensors::open(const std::string& path) {
  SafeTensors result;
  const fs::path file = checkpoint_file(path);
  result.path_ = file.string();
  if (file.extension() == ".json") {
    result.open_index(file.string());
  } else {
    result.add_file(file.string(), {}, {});
  }
  return result;
}

void SafeTensors::open_index(const std::string& path) {
  const std::map<std::string, std::string> shard_of = read_weight_map(path);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of) shards.insert(shard);
  const fs::path directory = fs::path(path).parent_path();
  for (const std::string& shard : shards) {
    add_file((directory / shard).string(), shard_of, shard);
  }
  for (const auto& [tensor, shard] : shard_of) {
    if (!contains(tensor)) {
      throw FormatError(
          path, -1,
          cat("tensor '", tensor, "' is not in the shard ", (directory / shard).string()));
    }
  }
}

// Adds the tensors of the file, without those that shard_of finds in another shard.
void SafeTensors::add_file(const std::string& path,
                           const std::map<std::string, std::string>& shard_of,
                           const std::string& shard) {
  const auto file = std::make_shared<const File>(path);
  FileMetadata own{path, {}};
  for (auto& [tensor, view] : parse_safetensors(file->bytes, path, &own.metadata)) {
    const auto listed = shard_of.find(tensor);
    if (listed != shard_of.end() && listed->second != shard) continue;
    const auto [entry, added] = tensors_.emplace(tensor, Entry{view, file.get()});
    if (!added) throw bad_tensor(tensor, cat("is in ", path, " too, and the index lists neither"));
  }
  files_.push_back(file);
  metadata_.insert(own.metadata.begin(), own.metadata.end());
  file_metadata_.push_back(std::move(own));
}

const TensorView& SafeTensors::at(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw FormatError(path_, -1, cat("tensor '", name, "' is missing"));
  return found->second.view;
}

const TensorView& SafeTensors::at(std::string_view name, std::span<const int64_t> shape) const {
  const TensorView& tensor = at(name);
  if (!std::ranges::equal(tensor.shape, shape)) {
    throw bad_tensor(
        name, cat("has shape ", shape_text(tensor.shape), " in place of ", shape_text(shape)));
  }
  return tensor;
}

FormatError SafeTensors::bad_tensor(std::string_view name, const std::string& what) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return {path_, -1, cat("tensor '", name, "' ", what)};
  const auto& [view, file] = found->second;
  return {file->path, view.data.data() - file->bytes.data(), cat("tensor '", name, "' ", what)};
}

void SafeTensors::bring_in(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const Pages pages(bytes);
  ::madvise(pages.begin, pages.size, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_READ
  if (::madvise(pages.begin, pages.size, MADV_POPULATE_READ) == 0) return;
#endif
  ::madvise(pages.begin, pages.size, MADV_WILLNEED);
}

void SafeTensors::release_pages() const {
  for (const auto& file : files_) {
    if (file->bytes.empty()) continue;
    ::madvise(const_cast<std::byte*>(file->bytes.data()), file->bytes.size(), MADV_DONTNEED);
  }
}

std::vector<std::string> SafeTensors::names() const {
  std::vector<std::string> result;
  for (const auto& [name, entry] : tensors_) result.push_back(name);
  return result;
}

}  // namespace trimtab
