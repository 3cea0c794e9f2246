// SPDX-License-Identifier: Apache-2.0
// Fuzzes the readers of all engines' files. The first byte chooses the format and the kind, or
// leaves the format to be detected, or names the file as TensorRT-LLM names counts of pairs. The
// other bytes are either refused with a FormatError or are a value that keeps the promises of
// recordings.h and reads back the same after it is written.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "files/xz.h"
#include "trimtab/error.h"
#include "trimtab/recordings.h"
#include "trimtab/table.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

bool writes_loads(trimtab::FileFormat format) {
  for (const auto& info : trimtab::file_formats()) {
    if (info.format == format) return info.writes_loads;
  }
  return false;
}

// What loads of slots are read under.
const trimtab::Placement& some_placement() {
  static const trimtab::Placement placement(2, 4, {3, 3}, {0, 1, 2, 3, 0, 1, 3, 2, 0, 1, 0, 3});
  return placement;
}

void check_sample(const trimtab::Recording& recording) {
  if (!recording.tokens) return;
  const trimtab::TokenSample& tokens = *recording.tokens;
  const trimtab::Load& load = recording.load;
  check(tokens.num_tokens() > 0 && tokens.num_tokens() <= tokens.tokens_seen);
  trimtab::check_tokens(tokens, load.num_layers, load.num_experts, std::max(1, tokens.num_ranks));
}

void read_loads(std::span<const std::byte> image, std::optional<trimtab::FileFormat> format,
                const char* name) {
  const auto recording = trimtab::parse_recording(
      image, name, {.format = format, .recorded_under = &some_placement()});
  check_sample(recording);
  const trimtab::Load& load = recording.load;
  check(load.num_steps > 0 && load.num_layers > 0 && load.num_experts > 0);
  check(trimtab::cells(load.num_steps, load.num_layers, load.num_experts) == load.counts.size());
  check(recording.layer_ids.size() == static_cast<size_t>(load.num_layers));
  check(recording.step_ids.size() == static_cast<size_t>(load.num_steps));
  check(std::is_sorted(recording.layer_ids.begin(), recording.layer_ids.end()));
  check(std::is_sorted(recording.step_ids.begin(), recording.step_ids.end()));
  int64_t sum = 0;
  for (const int64_t count : load.counts) {
    check(count >= 0);
    check(!__builtin_add_overflow(sum, count, &sum));
  }
  const trimtab::FileFormat same = format.value_or(trimtab::detect_format(image, "fuzz").format);
  if (load.counts.size() > 100'000 || !writes_loads(same)) return;
  const std::string written = trimtab::serialize_recording(recording, same);
  const auto back = trimtab::parse_recording(bytes_of(written), "written", {.format = same});
  check(back.load.counts == load.counts && back.load.num_layers == load.num_layers);
  if (same != trimtab::FileFormat::kJson || !recording.tokens) return;
  check(back.tokens && back.tokens->ids == recording.tokens->ids &&
        back.tokens->source_rank == recording.tokens->source_rank);
}

void read_placement(std::span<const std::byte> image, std::optional<trimtab::FileFormat> format) {
  // The files of vLLM-Ascend and Trimtab state the ranks. The others are read for one rank.
  const bool says = format && (*format == trimtab::FileFormat::kVllmAscend ||
                               *format == trimtab::FileFormat::kJson);
  const auto file =
      trimtab::parse_placement(image, "fuzz", {.format = format, .num_ranks = says ? 0 : 1});
  check(file.layer_ids.size() == static_cast<size_t>(file.placement.num_layers()));
  if (!format) return;
  const std::string written = trimtab::serialize_placement(file, *format);
  const auto back = trimtab::parse_placement(bytes_of(written), "written",
                                             {.format = format, .num_ranks = says ? 0 : 1});
  check(back.placement.num_ranks() == file.placement.num_ranks());
  for (int layer = 0; layer < file.placement.num_layers(); ++layer) {
    check(std::ranges::equal(back.placement.logical(layer), file.placement.logical(layer)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span image(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  const auto formats = trimtab::file_formats();
  const size_t choice = (data[0] - size_t{'a'}) % (2 * (formats.size() + 1) + 1);
  const size_t index = choice / 2;
  std::optional<trimtab::FileFormat> format;
  if (index < formats.size()) format = formats[index].format;
  const bool names_pairs = index > formats.size();
  try {
    if (names_pairs) {
      read_loads(image, trimtab::FileFormat::kTrtllm, "cooccurrence_rank0.safetensors");
    } else if (choice % 2 == 0) {
      if (format && !formats[index].reads_loads) return 0;
      read_loads(image, format, "fuzz");
    } else {
      if (format && !formats[index].placements) return 0;
      read_placement(image, format);
    }
  } catch (const trimtab::FormatError& error) {
    check(trimtab::is_xz(image) || error.offset() <= static_cast<int64_t>(size));
  } catch (const trimtab::InvalidArgument&) {
    check(!format);  // detected as a format that states its ranks, or that lacks the kind
  }
  return 0;
}
