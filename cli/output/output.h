// SPDX-License-Identifier: Apache-2.0
// Writes results. Standard output gets one whole report, and files are known to be writable before
// the work starts.
#pragma once

#include <string>

namespace trimtab::cli {

// Throws InvalidArgument when the file that an option names can't be written: an hour of work
// should not end with that. Nothing happens when the name is empty.
void check_writable(const std::string& option, const std::string& file);

// Throws Error when standard output can't take all of it.
void print_report(const std::string& report);

}  // namespace trimtab::cli
