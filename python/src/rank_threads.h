// SPDX-License-Identifier: Apache-2.0
// The threads that ranks and their teams run on. Where the process has an OpenMP runtime, as with
// torch, they are its threads: those of torch's intra-op pool, which would otherwise spin beside
// ours for a while after each of its own regions. Else they are threads of this object.
#pragma once

#include <functional>
#include <memory>

#include "trimtab/team.h"

namespace trimtab::python {

class OpenMp;

class RankThreads {
 public:
  // share_openmp: use the process's OpenMP threads where there are any.
  RankThreads(int size, bool share_openmp);
  ~RankThreads();

  int size() const { return size_; }
  // Calls body(member) once for each member in [0, size()), all at the same time and member 0 on
  // the calling thread; returns when all are through. They may wait for each other. body must not
  // throw.
  void run(const std::function<void(int)>& body);
  // "openmp" or "own": whose threads the last run() was on.
  const char* threads() const { return own_ != nullptr ? "own" : "openmp"; }

 private:
  int size_;
  std::unique_ptr<OpenMp> openmp_;
  std::unique_ptr<Team> own_;
};

}  // namespace trimtab::python
