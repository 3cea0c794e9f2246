// SPDX-License-Identifier: Apache-2.0
#include "cli/output/line_printer.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace trimtab::cli {

namespace {

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

LinePrinter::LinePrinter(bool quiet) : quiet_(quiet), terminal_(is_terminal()) {}

LinePrinter::~LinePrinter() {
  if (line_is_open_) std::fputs("\n", stderr);
}

bool LinePrinter::wants_status() const {
  if (quiet_) return false;
  const auto pause = terminal_ ? std::chrono::milliseconds(50) : std::chrono::milliseconds(5000);
  return !last_ || Clock::now() - *last_ >= pause;
}

void LinePrinter::status(const std::string& text) {
  if (!wants_status()) return;
  last_ = Clock::now();
  if (terminal_) {
    // A line as wide as the terminal would wrap on some.
    const auto width = static_cast<int>(terminal_width() - 1);
    std::fprintf(stderr, "\r%.*s\x1b[K", width, text.c_str());
    line_is_open_ = true;
  } else {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
  std::fflush(stderr);
}

void LinePrinter::finish(const std::string& text) {
  if (quiet_) return;
  if (terminal_) {
    std::fputs("\r\x1b[K", stderr);
    line_is_open_ = false;
  } else {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
  std::fflush(stderr);
}

}  // namespace trimtab::cli
