// SPDX-License-Identifier: Apache-2.0
#include "cli/run/wire.h"

#include <algorithm>
#include <span>
#include <utility>

#include "comm/rank_bytes.h"

namespace trimtab::cli {

namespace {

constexpr std::pair<const char*, DType> kTypes[] = {
    {"f32", DType::kF32}, {"bf16", DType::kBF16}, {"i8", DType::kI8}, {"mxfp8", DType::kF8E4M3}};

}  // namespace

std::vector<std::string> wire_types() {
  std::vector<std::string> names;
  for (const auto& [name, type] : kTypes) names.emplace_back(name);
  return names;
}

DType wire_type(const std::string& name) {
  return std::ranges::find(kTypes, name, &std::pair<const char*, DType>::first)->second;
}

std::string wire_name(DType type) {
  return std::ranges::find(kTypes, type, &std::pair<const char*, DType>::second)->first;
}

SentBytes sent_by_all(Communicator& comm, const SentBytes& mine) {
  SentBytes sum;
  for (const auto& bytes : bytes_of_ranks(comm, std::as_bytes(std::span(&mine, 1))))
    sum += values_of<SentBytes>(bytes).front();
  return sum;
}

}  // namespace trimtab::cli
