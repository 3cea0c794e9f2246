// SPDX-License-Identifier: Apache-2.0
#include "rank_threads.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>

namespace trimtab::python {
namespace {

// OpenMP runtimes hang in the child of a fork when the parent has used them.
const pid_t kLoadedIn = getpid();

}  // namespace

// The entry points of libgomp, which the runtimes of LLVM and Intel have too. They are looked up,
// not linked: another copy of the library would have threads of its own.
class OpenMp {
 public:
  // Null where the process has none that works.
  static std::unique_ptr<OpenMp> find() {
    if (getpid() != kLoadedIn) return nullptr;
    auto openmp = std::make_unique<OpenMp>();
    openmp->parallel_ = symbol<Parallel>("GOMP_parallel");
    openmp->thread_num_ = symbol<Query>("omp_get_thread_num");
    openmp->num_threads_ = symbol<Query>("omp_get_num_threads");
    const bool found = openmp->parallel_ != nullptr && openmp->thread_num_ != nullptr &&
                       openmp->num_threads_ != nullptr;
    return found ? std::move(openmp) : nullptr;
  }

  // False, and body is not called: there are fewer threads to be had, as inside another parallel
  // region.
  bool run(int size, const std::function<void(int)>& body) const {
    Region region{*this, body, size, {}};
    parallel_(&OpenMp::enter, &region, static_cast<unsigned>(size), 0);
    return !region.too_few;
  }

 private:
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  using Query = int (*)();
  struct Region {
    const OpenMp& openmp;
    const std::function<void(int)>& body;
    int size;
    std::atomic<bool> too_few;
  };

  template <class Function>
  static Function symbol(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  }
  static void enter(void* data) {
    auto& region = *static_cast<Region*>(data);
    if (region.openmp.num_threads_() == region.size) {
      region.body(region.openmp.thread_num_());
    } else {
      region.too_few = true;
    }
  }

  Parallel parallel_ = nullptr;
  Query thread_num_ = nullptr, num_threads_ = nullptr;
};

RankThreads::RankThreads(int size, bool share_openmp)
    : size_(size), openmp_(share_openmp ? OpenMp::find() : nullptr) {
  if (openmp_ == nullptr) own_ = std::make_unique<Team>(size);
}

RankThreads::~RankThreads() = default;

void RankThreads::run(const std::function<void(int)>& body) {
  if (openmp_ != nullptr) {
    if (openmp_->run(size_, body)) return own_.reset();
    if (own_ == nullptr) own_ = std::make_unique<Team>(size_);
  }
  // Bodies that wait for each other: nobody takes a second one before all are taken.
  own_->for_each(size_, [&](int64_t member) { body(static_cast<int>(member)); });
}

}  // namespace trimtab::python
