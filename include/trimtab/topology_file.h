// SPDX-License-Identifier: Apache-2.0
// Files of a topology: the node of each rank, and what a copy of a token costs from rank to rank.
// docs/formats.md has the format.
#pragma once

#include <string>
#include <string_view>

#include "trimtab/topology.h"

namespace trimtab {

// Throws FormatError with the file and the byte where it is not what docs/formats.md says: an
// unknown key, another version, prices that are no square table or not 0 on the diagonal, nodes
// that are not numbered from 0 without a gap, or neither of both.
Topology parse_topology(std::string_view text, const std::string& file);
// As above; Error when the file can't be read.
Topology read_topology(const std::string& path);

}  // namespace trimtab
