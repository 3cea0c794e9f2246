// SPDX-License-Identifier: Apache-2.0
// Ctrl-C while a run makes tokens.
#pragma once

#include <csignal>

namespace trimtab::cli {

// While it lives, the first Ctrl-C asks the run to end and the second one ends the process as
// before. One at a time. Where Ctrl-C is ignored it stays ignored.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Has Ctrl-C come? May be asked from any thread.
  static bool came();

 private:
  struct sigaction before_ = {};
};

}  // namespace trimtab::cli
