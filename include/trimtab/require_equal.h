// SPDX-License-Identifier: Apache-2.0
// Ranks that were started differently (other options, model files, placements or prompts on one of
// them) would compute nonsense or end in each other's memory. This check finds them first: every
// rank brings a digest of each thing that must be the same on all ranks, and all ranks get the same
// error, which names what differs, between which ranks and, where it is short, how.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "trimtab/communicator.h"

namespace trimtab {

// One thing that must be the same on every rank.
struct NamedDigest {
  std::string name;     // what a person calls it: "--steps", "model.safetensors", "the prompts"
  uint64_t digest = 0;  // equal digests stand for equal things
  std::string value;    // what the error shows of it, cut at 120 bytes; empty: nothing is shown
};

// A digest of bytes or text: 64-bit FNV-1a, the same on every machine. It tells mistakes apart, not
// attacks. To take in things that come in parts, hand each result to the next call as `seed`.
inline constexpr uint64_t kDigestSeed = 14695981039346656037U;
uint64_t digest_of(std::span<const std::byte> bytes, uint64_t seed = kDigestSeed);
// The length is part of it, so that {"ab", "c"} and {"a", "bc"} have different digests.
uint64_t digest_of(std::string_view text, uint64_t seed = kDigestSeed);
// An option or another short value, compared as text and shown in the error.
NamedDigest named_value(std::string name, std::string value);

// Returns when all ranks have brought equal digests under equal names; the order does not matter.
// Throws InvalidArgument otherwise, with the same text on every rank, which lists up to 8
// differences; the group goes on and may be used. Throws CommError when a peer fails. Collective
// and blocking; nothing else of `comm` may be in flight. A name may be given once; a rank that
// gives one twice has that reported to all ranks as a difference.
void require_equal(Communicator& comm, std::span<const NamedDigest> mine);

}  // namespace trimtab
