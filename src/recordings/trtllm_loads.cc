// SPDX-License-Identifier: Apache-2.0
// TensorRT-LLM's expert statistics (EXPERT_STATISTIC_PATH): meta_info.json, and for each rank a
// rank{r}.safetensors with a tensor "{iteration}_{layer}" of counts [experts]. The ranks are
// summed, as examples/wide_ep/ep_load_balancer does.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/cat.h"
#include "base/file.h"
#include "recordings/checked_recording.h"
#include "recordings/ids.h"
#include "recordings/json_reader.h"
#include "recordings/readers.h"
#include "trimtab/error.h"
#include "trimtab/safetensors.h"

namespace trimtab {
namespace {

using Key = std::pair<int64_t, int>;  // iteration, layer

// "12_3"; nullopt for anything else.
std::optional<Key> parse_key(std::string_view name) {
  Key key;
  const auto parse = [](std::string_view digits, auto& value) {
    const char* end = digits.data() + digits.size();
    const auto result = std::from_chars(digits.data(), end, value);
    return result.ec == std::errc() && result.ptr == end && value >= 0;
  };
  const size_t bar = name.find('_');
  if (bar == name.npos || !parse(name.substr(0, bar), key.first) ||
      !parse(name.substr(bar + 1), key.second) || key.second > kMaxLayerId) {
    return std::nullopt;
  }
  return key;
}

// The i-th count, or -1 when it exceeds 63 bits.
template <class T>
int64_t element(std::span<const std::byte> data, int64_t i) {
  T value;
  std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
  return std::in_range<int64_t>(value) ? static_cast<int64_t>(value) : -1;
}

using Element = int64_t (*)(std::span<const std::byte>, int64_t);
Element element_of(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return element<uint8_t>;
    case DType::kI16:
      return element<int16_t>;
    case DType::kI32:
      return element<int32_t>;
    case DType::kU32:
      return element<uint32_t>;
    case DType::kI64:
      return element<int64_t>;
    case DType::kU64:
      return element<uint64_t>;
    default:
      return nullptr;
  }
}

// The counts of all ranks read so far.
class Statistics {
 public:
  // Throws FormatError when the file has other iterations and layers than those before: its counts
  // would be missing from the sum.
  void add(std::span<const std::byte> image, const std::string& file) {
    const auto tensors = parse_safetensors(image, file);
    std::map<Key, std::string> seen;  // "1_2" and "01_2" are one
    const bool is_first = sums_.empty();
    for (const auto& [name, tensor] : tensors) {
      const int64_t at = tensor.data.data() - image.data();
      const auto fail = [&](const std::string& what) {
        throw FormatError(file, at, cat("tensor ", name, ": ", what));
      };
      const std::optional<Key> key = parse_key(name);
      if (!key) fail("a name {iteration}_{layer} expected");
      if (!seen.emplace(*key, name).second) fail(cat("the same as ", seen[*key]));
      if (tensor.shape.size() != 1 || tensor.shape[0] < 1 || tensor.shape[0] > kMaxExperts) {
        fail("a shape [experts] expected");
      }
      const Element get = element_of(tensor.dtype);
      if (get == nullptr) fail("whole numbers expected");
      const int64_t experts = tensor.shape[0];
      if (num_experts_ == 0) num_experts_ = experts;
      if (experts != num_experts_) fail(cat(experts, " experts; others have ", num_experts_));
      const auto [found, is_new] = sums_.try_emplace(*key, experts, 0);
      if (is_new && !is_first) fail("the ranks before have no such counts");
      std::vector<int64_t>& sum = found->second;
      for (int64_t e = 0; e < experts; ++e) {
        const int64_t count = get(tensor.data, e);
        if (count < 0) fail(cat("expert ", e, ": the count is negative or exceeds 63 bits"));
        if (__builtin_add_overflow(sum[e], count, &sum[e]))
          fail(cat("expert ", e, ": the ranks sum to more than 63 bits hold"));
      }
    }
    for (const auto& [key, sum] : sums_) {
      if (!seen.contains(key)) {
        throw FormatError(file, -1,
                          cat("no counts of layer ", key.second, " in iteration ", key.first,
                              ", which the ranks before have"));
      }
    }
  }

  // Every iteration must have every layer.
  Recording recording(const std::string& file, const RecordingOptions& options) const {
    if (sums_.empty()) throw FormatError(file, -1, "no statistics");
    std::set<int64_t> steps;
    std::set<int> layers;
    for (const auto& [key, sum] : sums_) {
      steps.insert(key.first);
      layers.insert(key.second);
    }
    if (sums_.size() / layers.size() != steps.size() || sums_.size() % layers.size() != 0) {
      fail_for_hole(file, steps, layers);
    }
    std::vector<int64_t> counts;
    for (const auto& [key, sum] : sums_) counts.insert(counts.end(), sum.begin(), sum.end());
    const int64_t shape[] = {std::ssize(steps), std::ssize(layers), num_experts_};
    Recording recording = dense_recording(file, shape, std::move(counts), options);
    recording.step_ids.assign(steps.begin(), steps.end());
    recording.layer_ids.assign(layers.begin(), layers.end());
    return recording;
  }

 private:
  [[noreturn]] void fail_for_hole(const std::string& file, const std::set<int64_t>& steps,
                                  const std::set<int>& layers) const {
    for (const int64_t step : steps) {
      for (const int layer : layers) {
        if (!sums_.contains({step, layer})) {
          throw FormatError(file, -1, cat("no counts of layer ", layer, " in iteration ", step));
        }
      }
    }
    throw FormatError(file, -1, "no whole grid of iterations and layers");
  }

  int64_t num_experts_ = 0;
  std::map<Key, std::vector<int64_t>> sums_;
};

// The ranks whose files stand in a folder. A rank{r}_raw.safetensors does not count.
std::set<int> ranks_in(const std::string& path) {
  std::set<int> ranks;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view kBegin = "rank";
    constexpr std::string_view kEnd = ".safetensors";
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd) ||
        name.size() <= kBegin.size() + kEnd.size())
      continue;
    int rank = -1;
    const char* end = name.data() + name.size() - kEnd.size();
    const auto result = std::from_chars(name.data() + kBegin.size(), end, rank);
    if (result.ec == std::errc() && result.ptr == end && name == cat(kBegin, rank, kEnd))
      ranks.insert(rank);
  }
  if (error) throw Error(cat("can't read ", path, ": ", error.message()));
  return ranks;
}

// Throws when there are no ranks, or one is missing before the last.
void check_complete(const std::string& path, const std::set<int>& ranks) {
  if (ranks.empty()) throw FormatError(path, -1, "no rank*.safetensors in this folder");
  int expected = 0;
  for (const int rank : ranks) {
    if (rank != expected++)
      throw FormatError(path, -1, cat("rank", expected - 1, ".safetensors is missing"));
  }
}

std::map<std::string, int64_t> read_meta(const std::string& path) {
  const std::vector<std::byte> image = read_file(path);
  const Content content(image, path);
  refuse_containers(content);
  JsonReader json(content.text(), path);
  std::map<std::string, int64_t> meta;
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    if (key == "num_experts" || key == "num_experts_per_token") {
      meta[key] = json.integer(1, kMaxExperts);
    } else {
      json.skip_value();
    }
  }
  json.end();
  for (const char* wanted : {"num_experts", "num_experts_per_token"}) {
    if (!meta.contains(wanted)) throw FormatError(path, 0, cat("no key \"", wanted, "\""));
  }
  return meta;
}

}  // namespace

Recording read_trtllm_loads(const Content& content, const RecordingOptions& options) {
  Statistics statistics;
  statistics.add(content.image(), content.file());
  return statistics.recording(content.file(), options);
}

Recording read_trtllm_folder(const std::string& path, const RecordingOptions& options) {
  const std::map<std::string, int64_t> meta = read_meta(path + "/meta_info.json");
  const std::set<int> ranks = ranks_in(path);
  check_complete(path, ranks);
  Statistics statistics;
  for (const int rank : ranks) {
    const std::string file = cat(path, "/rank", rank, ".safetensors");
    statistics.add(read_file(file), file);
  }
  Recording recording = statistics.recording(path, options);
  if (meta.at("num_experts") != recording.load.num_experts) {
    throw FormatError(path + "/meta_info.json", -1,
                      cat("num_experts is ", meta.at("num_experts"), "; the ranks have ",
                          recording.load.num_experts));
  }
  recording.metadata["num_experts_per_token"] = std::to_string(meta.at("num_experts_per_token"));
  return recording;
}

std::string trtllm_loads(const Recording& recording) {
  const Load& load = recording.load;
  const size_t row_bytes = load.num_experts * sizeof(int64_t);
  std::string header = "{";
  size_t at = 0;
  for (const int64_t step : recording.step_ids) {
    for (const int layer : recording.layer_ids) {
      header += cat(at > 0 ? "," : "", "\"", step, "_", layer, R"(":{"dtype":"I64","shape":[)",
                    load.num_experts, R"(],"data_offsets":[)", at, ",", at + row_bytes, "]}");
      at += row_bytes;
    }
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string image;
  for (size_t byte = 0; byte < 8; ++byte)
    image += static_cast<char>(header.size() >> (8 * byte) & 0xff);
  image += header;
  image.append(reinterpret_cast<const char*>(load.counts.data()),
               load.counts.size() * sizeof(int64_t));
  return image;
}

void write_trtllm_folder(const std::string& path, const Recording& recording) {
  const auto top_k = recording.metadata.find("num_experts_per_token");
  const bool known = top_k != recording.metadata.end() && !top_k->second.empty() &&
                     top_k->second.find_first_not_of("0123456789") == std::string::npos;
  if (!known)
    throw InvalidArgument("TensorRT-LLM's statistics need num_experts_per_token in the metadata");
  const std::string image = trtllm_loads(recording);
  const std::string meta = cat("{\"num_experts\": ", recording.load.num_experts,
                               ", \"num_experts_per_token\": ", top_k->second, "}\n");
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw Error(cat("can't create ", path, ": ", error.message()));
  for (const int rank : ranks_in(path)) {
    if (rank != 0) {
      throw InvalidArgument(cat(path, " holds rank", rank,
                                ".safetensors already, whose counts "
                                "would be added to those of rank0.safetensors"));
    }
  }
  write_file(path + "/rank0.safetensors", {std::as_bytes(std::span(image))});
  write_file(path + "/meta_info.json", {std::as_bytes(std::span(meta))});
}

}  // namespace trimtab
