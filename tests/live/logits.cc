// SPDX-License-Identifier: Apache-2.0
// Writes the logits of a model for token ids, for comparison with other implementations:
// trimtab_logits MODEL IDS OUT.npy [f32|bf16]; IDS: separated by commas; OUT.npy: f32 [tokens,
// vocab].
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include "trimtab/decoder.h"
#include "trimtab/npy.h"

namespace {

void write_logits(const std::string& model, const std::string& ids, const std::string& out,
                  trimtab::DType dtype) {
  std::vector<int32_t> tokens;
  std::istringstream in(ids);
  for (std::string id; std::getline(in, id, ',');) tokens.push_back(std::stoi(id));
  const auto count = static_cast<int64_t>(tokens.size());

  const trimtab::ModelConfig config = trimtab::read_model_config(model);
  const auto placement =
      trimtab::Placement::linear(trimtab::num_moe_layers(config), config.router.num_experts, 1);
  const auto weights = trimtab::DecoderWeights::load(trimtab::SafeTensors::open(model), config,
                                                     {dtype, dtype}, placement);
  std::vector<float> logits(tokens.size() * static_cast<size_t>(config.vocab_size));
  trimtab::run_ranks(1, [&](trimtab::Communicator& comm) {
    trimtab::Decoder decoder(weights, placement, comm, {.max_tokens = static_cast<int>(count)});
    trimtab::KvCache cache(config, count);
    const std::vector<trimtab::Chunk> batch = {{&cache, tokens, trimtab::Chunk::Logits::kAll}};
    decoder.step(batch, trimtab::Rows(logits.data(), count, config.vocab_size));
  });
  const std::vector<int64_t> shape = {count, config.vocab_size};
  trimtab::write_npy(out, trimtab::DType::kF32, shape, std::as_bytes(std::span(logits)));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string dtype = argc == 5 ? argv[4] : "f32";
  if ((argc != 4 && argc != 5) || (dtype != "f32" && dtype != "bf16")) {
    std::fputs("usage: trimtab_logits MODEL IDS OUT.npy [f32|bf16]\n", stderr);
    return 2;
  }
  try {
    write_logits(argv[1], argv[2], argv[3],
                 dtype == "bf16" ? trimtab::DType::kBF16 : trimtab::DType::kF32);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trimtab_logits: %s\n", error.what());
    return 1;
  }
  return 0;
}
