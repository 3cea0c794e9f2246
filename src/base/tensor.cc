// SPDX-License-Identifier: Apache-2.0
#include "trimtab/tensor.h"

#include <sys/mman.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

namespace trimtab {
namespace {

struct TypeInfo {
  std::string_view name;
  int bits;
};

constexpr std::array<TypeInfo, 17> kTypes = {{{"BOOL", 8},
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
                                              {"F4", 4}}};

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

int bits(DType type) { return kTypes[static_cast<size_t>(type)].bits; }

std::string_view name(DType type) { return kTypes[static_cast<size_t>(type)].name; }

float to_float(f16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000U) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fU;
  const uint32_t mantissa = x.bits & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -magnitude : magnitude;
  }
  const uint32_t exponent32 = exponent == 31 ? 255U : exponent + 112U;
  return std::bit_cast<float>(sign | (exponent32 << 23) | (mantissa << 13));
}

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const size_t alignment = bytes >= 2 * kHugePage ? kHugePage : 64;
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  if (rounded < bytes) throw std::bad_alloc();
  void* p = std::aligned_alloc(alignment, rounded);
  if (p == nullptr) throw std::bad_alloc();
  if (alignment == kHugePage) ::madvise(p, rounded, MADV_HUGEPAGE);  // a hint: failure costs speed only
  std::memset(p, 0, rounded);
  data_.reset(static_cast<std::byte*>(p));
}

void Buffer::Free::operator()(std::byte* p) const { std::free(p); }

}  // namespace trimtab
