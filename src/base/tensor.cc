// SPDX-License-Identifier: Apache-2.0
#include "trimtab/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace trimtab {
namespace {

struct TypeInfo {
  std::string_view name;
  int bits;
};

constexpr std::array<TypeInfo, 18> kTypes = {{{"BOOL", 8},
                                              {"U8", 8},
                                              {"I8", 8},
                                              {"I16", 16},
                                              {"U16", 16},
                                              {"F16", 16},
                                              {"BF16", 16},
                                              {"I32", 32},
                                              {"U32", 32},
                                              {"F32", 32},
                                              {"I64", 64},
                                              {"U64", 64},
                                              {"F64", 64},
                                              {"F8_E4M3", 8},
                                              {"F8_E5M2", 8},
                                              {"F8_E8M0", 8},
                                              {"F4", 4},
                                              {"U4", 4}}};

const TypeInfo& facts(DType type) {
  return kTypes[static_cast<size_t>(type)];
}

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLine = 64;

size_t round_up(size_t bytes, size_t unit) {
  if (bytes > std::numeric_limits<size_t>::max() - 2 * kHugePage) throw std::bad_alloc();
  return (bytes + unit - 1) / unit * unit;
}

// Zero pages that cost nothing until they are touched, at a huge page's border.
void* map_pages(size_t bytes) {
  const size_t size = round_up(bytes, kHugePage);
  void* map =
      ::mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(map);
  const size_t head = (kHugePage - reinterpret_cast<uintptr_t>(map) % kHugePage) % kHugePage;
  if (head > 0) ::munmap(begin, head);
  ::munmap(begin + head + size, kHugePage - head);
  ::madvise(begin + head, size, MADV_HUGEPAGE);  // a hint: failure costs speed only
  return begin + head;
}

}  // namespace

int bits(DType type) {
  return facts(type).bits;
}

std::string_view name(DType type) {
  return facts(type).name;
}

float to_float(f16_t x) {
  const uint32_t sign = (x.bits & 0x8000U) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fU;
  const uint32_t mantissa = x.bits & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -magnitude : magnitude;
  }
  const uint32_t exponent32 = exponent == 31 ? 255U : exponent + 112U;
  return std::bit_cast<float>(sign | (exponent32 << 23) | (mantissa << 13));
}

Buffer::Buffer(size_t bytes) {
  if (bytes == 0) return;
  void* p = nullptr;
  if (bytes >= kHugePage) {
    p = map_pages(bytes);
  } else {
    p = std::aligned_alloc(kLine, round_up(bytes, kLine));
    if (p == nullptr) throw std::bad_alloc();
    std::memset(p, 0, bytes);
  }
  data_ = std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(p), Free{bytes, nullptr});
  bytes_ = bytes;
}

void Buffer::Free::operator()(std::byte* p) {
  if (owner) {
    owner.reset();
  } else if (bytes >= kHugePage) {
    ::munmap(p, round_up(bytes, kHugePage));
  } else {
    std::free(p);
  }
}

Buffer BufferArena::take(size_t bytes) {
  if (bytes == 0) return {};
  if (!has_memory()) return Buffer::outline(bytes);
  if (!chunk_ || chunk_->bytes() - used_ < bytes) {
    chunk_ = std::make_shared<Buffer>(std::max(chunk_bytes_, bytes));
    used_ = 0;
  }
  Buffer buffer(chunk_->data() + used_, bytes, chunk_);
  used_ = std::min(chunk_->bytes(), used_ + round_up(bytes, kLine));
  return buffer;
}

}  // namespace trimtab
