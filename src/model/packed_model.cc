// SPDX-License-Identifier: Apache-2.0
#include "trimtab/packed_model.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/cat.h"
#include "base/file.h"
#include "experts/isa.h"
#include "experts/weights.h"
#include "files/safetensors_writer.h"
#include "model/layer_source.h"
#include "model/packed_format.h"
#include "trimtab/error.h"

namespace trimtab {

namespace fs = std::filesystem;

namespace {

// What a model folder has beside its weights, as far as somebody who runs it reads it.
constexpr std::array kOtherFiles = {"config.json",         "generation_config.json",
                                    "tokenizer.json",      "tokenizer_config.json",
                                    "tokenizer.model",     "special_tokens_map.json",
                                    "added_tokens.json",   "vocab.json",
                                    "vocab.txt",           "merges.txt",
                                    "chat_template.jinja", "chat_template.json",
                                    "prompts.txt",         "LICENSE"};

void check_folders(const fs::path& from, const fs::path& to) {
  std::error_code ignored;
  if (fs::exists(to, ignored) && !fs::is_directory(to, ignored))
    throw InvalidArgument(cat(to.string(), " is no folder; a packed model is one"));
  for (const char* file : {"config.json", "model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(to / file, ignored))
      throw InvalidArgument(cat(to.string(), " holds a model already (", file, ")"));
  }
  if (fs::equivalent(from, to, ignored))
    throw InvalidArgument(cat(to.string(), " is the model itself; give another folder"));
}

// The tensors of one file. They are views of weights that outlive it.
class Shard {
 public:
  void add(const std::string& name, std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    tensors_.push_back(
        {name, DType::kU8, {static_cast<int64_t>(whole_pages(bytes.size()))}, bytes});
  }
  void add(const std::string& name, const std::vector<float>& values) {
    add(name, std::as_bytes(std::span(values)));
  }
  void add(const std::string& name, const PackedWeights& weights) {
    for (const PackedPart& part : kPackedParts) {
      const Buffer& buffer = weights.*part.buffer;
      add(cat(name, ".", part.name), std::span<const std::byte>(buffer.data(), buffer.bytes()));
    }
  }
  void add(const std::string& name, const Linear& linear) { add(name, linear.packed()); }
  void add(const std::string& name, const Mlp& mlp) {
    add(name + ".gate_up", mlp.gate_up_packed());
    add(name + ".down", mlp.down_packed());
  }
  // Any tensor, at the end.
  void add_last(TensorToWrite tensor) { tensors_.push_back(std::move(tensor)); }

  std::span<const TensorToWrite> tensors() const { return tensors_; }

 private:
  std::vector<TensorToWrite> tensors_;
};

Shard shard_of(const LayerWeights& layer, int l, const ModelConfig& config) {
  const std::string at = layer_name(l);
  Shard shard;
  for (const LayerNorm& norm : layer_norms(config)) shard.add(at + norm.name, layer.*norm.values);
  for (const AttentionMap& map : attention_maps(config))
    shard.add(at + map.name, layer.*map.linear);
  if (layer.dense) shard.add(at + "dense", *layer.dense);
  if (layer.gate) shard.add(at + "gate", *layer.gate);
  for (size_t e = 0; e < layer.experts.size(); ++e)
    shard.add(cat(at, "experts.", e), *layer.experts[e]);
  for (const auto& shared : layer.shared) shard.add(at + "shared", *shared);
  if (layer.shared_gate) shard.add(at + "shared_gate", *layer.shared_gate);
  return shard;
}

// Writes the files of a model, one after the other, and their index at the end.
class Folder {
 public:
  Folder(fs::path path, int num_files, std::map<std::string, std::string> metadata)
      : path_(std::move(path)), num_files_(num_files), metadata_(std::move(metadata)) {}

  // own: metadata of this file alone.
  void write(const Shard& shard, std::map<std::string, std::string> own = {}) {
    std::array<char, 64> name = {};
    std::snprintf(name.data(), name.size(), "packed-%05d-of-%05d.safetensors", ++written_,
                  num_files_);
    own.insert(metadata_.begin(), metadata_.end());
    for (const TensorToWrite& tensor : shard.tensors())
      own[sum_key(tensor.name)] = sum_of(tensor.data);
    write_safetensors((path_ / name.data()).string(), shard.tensors(), own);
    for (const TensorToWrite& tensor : shard.tensors()) weight_map_[tensor.name] = name.data();
  }

  void write_index() const {
    const nlohmann::json index = {{"metadata", metadata_}, {"weight_map", weight_map_}};
    const std::string text = index.dump(1) + "\n";
    write_file((path_ / kPackedModelIndex).string(), {std::as_bytes(std::span(text))});
  }

 private:
  const fs::path path_;
  const int num_files_;
  const std::map<std::string, std::string> metadata_;
  std::map<std::string, std::string> weight_map_;
  int written_ = 0;
};

void copy_other_files(const fs::path& from, const fs::path& to) {
  for (const char* file : kOtherFiles) {
    if (!fs::exists(from / file)) continue;
    const std::vector<std::byte> bytes = read_file((from / file).string());
    write_file((to / file).string(), {bytes});
  }
}

}  // namespace

PackedModel pack_model(const std::string& from, const std::string& to,
                       const DecoderFormats& formats,
                       const std::function<void(const LoadProgress&)>& progress, int threads) {
  check_folders(from, to);
  const ModelConfig config = read_model_config(from);
  const SafeTensors tensors = SafeTensors::open(from);
  if (tensors.metadata().contains(kVersionKey))
    throw InvalidArgument(cat(from, " is packed already; pack the original model"));
  LoadProgress done{.num_layers = config.num_hidden_layers};
  Team team(threads);
  const auto source = checkpoint_layers(
      tensors, config, formats,
      [&](size_t bytes) {
        done.bytes += bytes;
        if (progress) progress(done);
      },
      &team);
  PackedModel result{.formats = formats, .files = config.num_hidden_layers + 1};
  result.formats.experts = source->expert_format();
  result.formats.linear = formats.linear.value_or(formats.dtype);

  std::map<std::string, std::string> metadata = model_facts(config);
  metadata[kVersionKey] = kPackedVersion;
  metadata[kKernelsKey] = kernel_isa();
  metadata[kColumnsKey] = cat(chosen_kernels().width);
  metadata[kDTypeKey] = name(WeightFormat(formats.dtype));
  metadata[kLinearKey] = name(*result.formats.linear);
  metadata[kExpertsKey] = name(*result.formats.experts);
  std::error_code error;
  fs::create_directories(to, error);
  if (error) throw Error(cat("can't make ", to, ": ", error.message()));
  Folder folder(to, result.files, std::move(metadata));
  const std::vector<bool> all(config.router.num_experts, true);
  for (int l = 0; l < config.num_hidden_layers; ++l) {
    const LayerWeights layer = source->layer(l, all, {true});
    std::map<std::string, std::string> own;
    if (!layer.shared.empty()) own[shared_key(l)] = name(layer.shared[0]->weight_format());
    folder.write(shard_of(layer, l, config), std::move(own));
    result.bytes += packed_bytes(layer);
    ++done.layers;
  }
  const std::vector<float> norm = source->final_norm();
  const Linear head = source->head();
  const TensorView embedding = source->embedding();
  source->finish();
  result.bytes += head.bytes();
  Shard rest;
  rest.add("final_norm", norm);
  rest.add("head", head);
  rest.add_last({"embedding", embedding.dtype, embedding.shape, embedding.data});
  folder.write(rest);
  copy_other_files(from, to);
  folder.write_index();
  return result;
}

CheckedModel check_packed_model(const SafeTensors& tensors, int threads,
                                const std::function<void(size_t bytes)>& progress) {
  if (!tensors.metadata().contains(kVersionKey))
    throw InvalidArgument(cat(tensors.path(), " is no packed model, and has no checksums"));
  const std::vector<std::string> names = tensors.names();
  std::vector<const std::string*> sums;
  for (const std::string& name : names) {
    const auto sum = tensors.metadata().find(sum_key(name));
    if (sum == tensors.metadata().end())
      throw tensors.bad_tensor(name, cat("has no checksum in the header", kPackAgain));
    sums.push_back(&sum->second);
  }
  // Whoever finds that so much has been read gives it back.
  constexpr size_t kMostMapped = size_t{256} << 20;
  std::mutex mutex;  // guards the two below
  CheckedModel checked;
  size_t unreleased = 0;
  std::vector<char> is_good(names.size());
  Team team(threads);
  team.for_each(std::ssize(names), [&](int64_t i) {
    const std::span<const std::byte> bytes = tensors.at(names[i]).data;
    is_good[i] = has_sum(bytes, *sums[i]) ? 1 : 0;
    const std::lock_guard lock(mutex);
    ++checked.tensors;
    checked.bytes += bytes.size();
    if (progress) progress(checked.bytes);
    unreleased += bytes.size();
    if (unreleased < kMostMapped) return;
    tensors.release_pages();
    unreleased = 0;
  });
  tensors.release_pages();
  const auto bad = std::ranges::count(is_good, 0);
  if (bad == 0) return checked;
  const auto first = std::ranges::find(is_good, 0) - is_good.begin();
  throw tensors.bad_tensor(
      names[first], cat("does not have the checksum that the header says",
                        bad > 1 ? cat(", as ", bad - 1, " more of ", names.size(), " tensors") : "",
                        ": the file is damaged", kPackAgain));
}

}  // namespace trimtab
