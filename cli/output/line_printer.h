// SPDX-License-Identifier: Apache-2.0
// Progress on standard error: one overprinted line on a terminal, now and then a plain line
// elsewhere.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace trimtab::cli {

class LinePrinter {
 public:
  // quiet: prints nothing.
  explicit LinePrinter(bool quiet = false);
  // Ends the overprinted line, so that what follows (an error, say) starts on a fresh one.
  ~LinePrinter();
  LinePrinter(const LinePrinter&) = delete;
  LinePrinter& operator=(const LinePrinter&) = delete;

  // Would status() print now? So that nobody builds text that is thrown away.
  bool wants_status() const;
  // Replaces the status line, cut to the terminal's width. Elsewhere prints a line, at most one in
  // five seconds.
  void status(const std::string& text);
  // Clears the status line of a terminal. Elsewhere prints the text as a last line.
  void finish(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  const bool quiet_;
  const bool terminal_;
  bool line_is_open_ = false;
  std::optional<Clock::time_point> last_;
};

}  // namespace trimtab::cli
