// SPDX-License-Identifier: Apache-2.0
// MPI calls with errors as exceptions, and the one lock under which they are made.
#pragma once

#include <mpi.h>

#include <mutex>
#include <string>

#include "trimtab/error.h"

namespace trimtab::mpi {

inline std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  return MPI_Error_string(code, text, &length) == MPI_SUCCESS ? std::string(text, length)
                                                              : "error " + std::to_string(code);
}

inline void check(int code, const char* call) {
  if (code != MPI_SUCCESS) throw Error(std::string(call) + ": " + error_text(code));
}

// MPI_THREAD_SERIALIZED is all that is asked for, so calls of all groups of the process take turns.
inline std::recursive_mutex& calls() {
  static std::recursive_mutex mutex;
  return mutex;
}

}  // namespace trimtab::mpi
