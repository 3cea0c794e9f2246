// SPDX-License-Identifier: Apache-2.0
// TensorRT-LLM's expert statistics (EXPERT_STATISTIC_PATH): meta_info.json, and for each rank a
// rank{r}.safetensors with a tensor "{iteration}_{layer}" of counts [experts]. The ranks are
// summed, as examples/wide_ep/ep_load_balancer does. Tokens and pairs are read by trtllm_tokens.cc.
#include <algorithm>
#include <charconv>
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
#include "recordings/trtllm_tokens.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

// The counts of all ranks read so far.
class Statistics {
 public:
  // Throws FormatError when the file has other iterations and layers than those before: its counts
  // would be missing from the sum.
  void add(std::span<const std::byte> image, const std::string& file) {
    const TrtllmFile tensors(image, file);
    TrtllmCounts counts;
    for (const auto& [key, tensor] : tensors.tensors()) {
      if (tensor.dims() != 1 || tensor.shape()[0] < 1 || tensor.shape()[0] > kMaxExperts)
        tensor.fail("a shape [experts] expected");
      tensor.check_whole_numbers();
      const int64_t experts = tensor.shape()[0];
      if (num_experts_ == 0) num_experts_ = experts;
      if (experts != num_experts_)
        tensor.fail(cat(experts, " experts; others have ", num_experts_));
      if (!sums_.empty() && !sums_.contains(key))
        tensor.fail("the ranks before have no such counts");
      std::vector<int64_t>& of_rank = counts[key];
      for (int64_t e = 0; e < experts; ++e) {
        const int64_t count = tensor[e];
        if (count < 0) tensor.fail(cat("expert ", e, ": the count is negative or exceeds 63 bits"));
        of_rank.push_back(count);
      }
    }
    add(counts, file);
  }
  // The same for counts that are read. All have as many experts.
  void add(const TrtllmCounts& counts, const std::string& file) {
    const bool is_first = sums_.empty();
    for (const auto& [key, of_rank] : counts) {
      num_experts_ = std::ssize(of_rank);
      const auto [found, is_new] = sums_.try_emplace(key, of_rank.size(), 0);
      for (size_t e = 0; e < of_rank.size(); ++e) {
        if (__builtin_add_overflow(found->second[e], of_rank[e], &found->second[e]))
          throw FormatError(file, -1,
                            cat("layer ", key.second, " in iteration ", key.first, ", expert ", e,
                                ": the ranks sum to more than 63 bits hold"));
      }
    }
    for (const auto& [key, sum] : sums_) {
      if (!is_first && !counts.contains(key)) {
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
  TrtllmCounts sums_;
};

// The ranks whose files stand in a folder, named {begin}{rank}{end}.
std::set<int> ranks_in(const std::string& path, std::string_view begin = "rank",
                       std::string_view end = ".safetensors") {
  std::set<int> ranks;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(end) ||
        name.size() <= begin.size() + end.size())
      continue;
    int rank = -1;
    const char* last = name.data() + name.size() - end.size();
    const auto result = std::from_chars(name.data() + begin.size(), last, rank);
    if (result.ec == std::errc() && result.ptr == last && name == cat(begin, rank, end))
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

// The tokens of all ranks, where the folder has them: each rank's own, so that it says where they
// come from. Throws FormatError when it has only those of some ranks.
std::optional<TokenSample> read_folder_tokens(const std::string& path, const std::set<int>& ranks,
                                              int64_t num_experts, int64_t num_layers) {
  for (const auto& [begin, end] :
       {std::pair("rank", "_raw.safetensors"), {"token_selected_experts_rank", ".safetensors"}}) {
    const std::set<int> found = ranks_in(path, begin, end);
    if (found.empty()) continue;
    std::vector<TokenSample> samples;
    for (const int rank : ranks) {
      const std::string file = cat(path, "/", begin, rank, end);
      if (!found.contains(rank)) throw FormatError(file, -1, "is missing; other ranks have theirs");
      const std::vector<std::byte> image = read_file(file);
      const TrtllmFile tensors(image, file);
      samples.push_back(
          read_trtllm_tokens(tensors, num_experts, static_cast<int>(ranks.size())).sample);
      if (samples.back().num_layers != num_layers || samples.back().top_k != samples[0].top_k) {
        throw FormatError(
            file, -1,
            cat(samples.back().num_layers, " layers, ", samples.back().top_k, " picks of a token; ",
                num_layers, " and ", samples[0].top_k, " expected"));
      }
    }
    return merge_tokens(samples);
  }
  return std::nullopt;
}

// Counts of pairs, where the folder has them and no tokens.
std::optional<TokenSample> read_folder_pairs(const std::string& path, int64_t num_experts,
                                             int64_t num_layers) {
  constexpr std::string_view kBegin = "cooccurrence_rank", kEnd = ".safetensors";
  TrtllmPairs pairs;
  for (const int rank : ranks_in(path, kBegin, kEnd)) {
    const std::string file = cat(path, "/", kBegin, rank, kEnd);
    const std::vector<std::byte> image = read_file(file);
    pairs.add(TrtllmFile(image, file));
  }
  TokenSample sample = pairs.sample();
  if (sample.num_tokens() == 0) return std::nullopt;
  if (sample.num_layers != num_layers || sample.num_experts != num_experts) {
    throw FormatError(path, -1,
                      cat("pairs of ", sample.num_layers, " layers x ", sample.num_experts,
                          " experts; counts of ", num_layers, " x ", num_experts));
  }
  return sample;
}

bool names_pairs(const std::string& file) {
  return std::filesystem::path(file).filename().string().starts_with("cooccurrence_rank");
}

// A file of a single rank's tokens or pairs, whose counts follow from them.
Recording read_tokens_or_pairs(const TrtllmFile& tensors, const std::string& file,
                               const RecordingOptions& options) {
  Statistics statistics;
  TokenSample sample;
  if (names_pairs(file)) {
    TrtllmPairs pairs;
    pairs.add(tensors);
    statistics.add(pairs.counts(), file);
    sample = pairs.sample();
  } else {
    TrtllmRankTokens tokens = read_trtllm_tokens(tensors, options.num_experts, 1);
    statistics.add(tokens.counts, file);
    sample = std::move(tokens.sample);
  }
  Recording recording = statistics.recording(file, options);
  if (sample.num_tokens() > 0) recording.tokens = std::move(sample);
  return recording;
}

}  // namespace

Recording read_trtllm_loads(const Content& content, const RecordingOptions& options) {
  const TrtllmFile tensors(content.image(), content.file());
  if (tensors.tensors().begin()->second.dims() == 2)
    return read_tokens_or_pairs(tensors, content.file(), options);
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
  const int64_t experts = recording.load.num_experts, layers = recording.load.num_layers;
  recording.tokens = read_folder_tokens(path, ranks, experts, layers);
  if (!recording.tokens) recording.tokens = read_folder_pairs(path, experts, layers);
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
