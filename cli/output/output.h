// SPDX-License-Identifier: Apache-2.0
// Where results go: standard output gets one whole report, files are known to be writable before
// the work starts.
#pragma once

#include <string>

namespace trimtab::cli {

// An hour of work should not end with a file that can't be written. option: its name, for the
// message. Throws InvalidArgument.
void check_writable(const std::string& option, const std::string& file);

// Throws Error when standard output can't take all of it.
void print_report(const std::string& report);

}  // namespace trimtab::cli
