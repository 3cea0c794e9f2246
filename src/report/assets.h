// SPDX-License-Identifier: Apache-2.0
// The style and the script of the page: report.css, and charts.js with report.js after it.
#pragma once

#include <string_view>

namespace trimtab {

extern const std::string_view kReportStyle;
extern const std::string_view kReportScript;

}  // namespace trimtab
