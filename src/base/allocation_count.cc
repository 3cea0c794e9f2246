// SPDX-License-Identifier: Apache-2.0
#include "base/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> count{0};

void* counted(size_t bytes) noexcept {
  count.fetch_add(1, std::memory_order_relaxed);  // a statistic; orders nothing
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* counted(size_t bytes, std::align_val_t alignment) noexcept {
  count.fetch_add(1, std::memory_order_relaxed);
  const auto a = static_cast<size_t>(alignment);
  return std::aligned_alloc(a, (bytes / a + 1) * a);
}

void* or_throw(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

// All forms that are used: a sanitizer brings its own of each, which do not call one another.
void* operator new(size_t bytes) {
  return or_throw(counted(bytes));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return or_throw(counted(bytes, alignment));
}
void* operator new[](size_t bytes) {
  return or_throw(counted(bytes));
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes);
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return or_throw(counted(bytes, alignment));
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, const std::nothrow_t&) noexcept {
  std::free(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p, size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, const std::nothrow_t&) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, size_t, std::align_val_t) noexcept {
  std::free(p);
}

namespace trimtab {

int64_t allocation_count() {
  return count.load(std::memory_order_relaxed);
}

}  // namespace trimtab
