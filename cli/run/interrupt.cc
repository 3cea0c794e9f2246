// SPDX-License-Identifier: Apache-2.0
#include "cli/run/interrupt.h"

#include <atomic>

namespace trimtab::cli {

namespace {

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free);
struct sigaction action_before;  // as the second Ctrl-C finds it

void note_interrupt(int /*signal*/) {
  interrupted = true;
  sigaction(SIGINT, &action_before, nullptr);
}

}  // namespace

Interrupt::Interrupt() {
  sigaction(SIGINT, nullptr, &before_);
  if (before_.sa_handler == SIG_IGN) return;
  action_before = before_;
  struct sigaction note = {};
  note.sa_handler = note_interrupt;
  note.sa_flags = SA_RESTART;  // what is being written is written
  sigaction(SIGINT, &note, nullptr);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &before_, nullptr);
}

bool Interrupt::came() {
  return interrupted;
}

}  // namespace trimtab::cli
