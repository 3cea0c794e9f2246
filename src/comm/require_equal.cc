// SPDX-License-Identifier: Apache-2.0
#include "trimtab/require_equal.h"

#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "comm/rank_bytes.h"
#include "trimtab/error.h"

namespace trimtab {
namespace {

constexpr size_t kMostShown = 120;  // bytes of a value
constexpr int kMostDifferences = 8;

void put_number(std::vector<std::byte>& out, uint64_t number) {
  const auto bytes = std::as_bytes(std::span(&number, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void put_text(std::vector<std::byte>& out, std::string_view text) {
  put_number(out, text.size());
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

std::string shown(const std::string& value) {
  return value.size() <= kMostShown ? value : value.substr(0, kMostShown) + "...";
}

std::vector<std::byte> packed(std::span<const NamedDigest> digests) {
  std::vector<std::byte> out;
  for (const NamedDigest& digest : digests) {
    put_text(out, digest.name);
    put_number(out, digest.digest);
    put_text(out, shown(digest.value));
  }
  return out;
}

// Reads what packed() wrote. A peer may be another build, so nothing in it is taken for granted.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool at_end() const { return bytes_.empty(); }
  std::optional<uint64_t> number() {
    uint64_t value = 0;
    if (bytes_.size() < sizeof value) return std::nullopt;
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_ = bytes_.subspan(sizeof value);
    return value;
  }
  std::optional<std::string> text() {
    const std::optional<uint64_t> size = number();
    if (!size || *size > bytes_.size()) return std::nullopt;
    std::string text(*size, '\0');
    std::memcpy(text.data(), bytes_.data(), *size);
    bytes_ = bytes_.subspan(*size);
    return text;
  }

 private:
  std::span<const std::byte> bytes_;
};

// What one rank has brought, by name.
struct Brought {
  std::map<std::string, NamedDigest> digests;
  std::string fault;  // why it can't be compared; empty: it can
};

Brought unpacked(std::span<const std::byte> bytes) {
  Brought brought;
  for (Reader reader(bytes); !reader.at_end();) {
    std::optional<std::string> name = reader.text();
    const std::optional<uint64_t> digest = name ? reader.number() : std::nullopt;
    std::optional<std::string> value = digest ? reader.text() : std::nullopt;
    if (!value) {
      brought.fault = "runs another version of Trimtab";
      return brought;
    }
    const auto [at, is_new] = brought.digests.try_emplace(*name, *name, *digest, std::move(*value));
    if (!is_new) brought.fault = cat("names ", *name, " twice");
  }
  return brought;
}

// "--steps is 12 on rank 0 and 20 on rank 1", or without values "the prompts differ ...".
std::string difference(const NamedDigest& first, const NamedDigest& other, size_t rank) {
  if (first.value.empty() && other.value.empty())
    return cat(first.name, ": not the same on rank 0 and rank ", rank);
  if (first.value == other.value)
    return cat(first.name, " (", first.value, "): not the same on rank 0 and rank ", rank);
  return cat(first.name, ": ", first.value.empty() ? "(empty)" : first.value, " on rank 0, ",
             other.value.empty() ? "(empty)" : other.value, " on rank ", rank);
}

// What of this rank is not as on rank 0.
std::vector<std::string> differences(const Brought& first, const Brought& other, size_t rank) {
  std::vector<std::string> found;
  if (!other.fault.empty()) found.push_back(cat("rank ", rank, " ", other.fault));
  for (const auto& [name, digest] : first.digests) {
    const auto at = other.digests.find(name);
    if (at == other.digests.end()) {
      found.push_back(cat(name, ": given on rank 0, not on rank ", rank));
    } else if (at->second.digest != digest.digest) {
      found.push_back(difference(digest, at->second, rank));
    }
  }
  for (const auto& [name, digest] : other.digests) {
    if (!first.digests.contains(name))
      found.push_back(cat(name, ": given on rank ", rank, ", not on rank 0"));
  }
  return found;
}

}  // namespace

uint64_t digest_of(std::span<const std::byte> bytes, uint64_t seed) {
  for (const std::byte byte : bytes)
    seed = (seed ^ std::to_integer<uint64_t>(byte)) * 1099511628211U;
  return seed;
}

uint64_t digest_of(std::string_view text, uint64_t seed) {
  seed = digest_of(std::as_bytes(std::span(text)), seed);
  const uint64_t size = text.size();
  for (int shift = 0; shift < 64; shift += 8) {
    seed = (seed ^ (size >> shift & 0xff)) * 1099511628211U;
  }
  return seed;
}

NamedDigest named_value(std::string name, std::string value) {
  const uint64_t digest = digest_of(std::string_view(value));
  return {std::move(name), digest, std::move(value)};
}

void require_equal(Communicator& comm, std::span<const NamedDigest> mine) {
  const std::vector<std::vector<std::byte>> all = bytes_of_ranks(comm, packed(mine));
  const Brought first = unpacked(all[0]);
  std::vector<std::string> found;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::vector<std::string> more = differences(first, unpacked(all[rank]), rank);
    found.insert(found.end(), more.begin(), more.end());
  }
  if (found.empty()) return;
  std::string text = "the ranks were started differently";
  for (size_t i = 0; i < found.size() && i < kMostDifferences; ++i)
    text += cat(i == 0 ? ": " : "; ", found[i]);
  if (found.size() > kMostDifferences)
    text += cat("; and ", found.size() - kMostDifferences, " more differences");
  throw InvalidArgument(text);
}

}  // namespace trimtab
