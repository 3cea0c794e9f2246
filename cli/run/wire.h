// SPDX-License-Identifier: Apache-2.0
// The types in which rows travel between ranks, as --wire and the reports name them.
#pragma once

#include <string>
#include <vector>

#include "trimtab/communicator.h"
#include "trimtab/tensor.h"

namespace trimtab::cli {

// "f32", "bf16", "i8" and "mxfp8".
std::vector<std::string> wire_types();
// One of these.
DType wire_type(const std::string& name);
std::string wire_name(DType type);

// How rows travelled in a run, and what all ranks together sent.
struct Wire {
  DType rows = DType::kF32, results = DType::kF32;
  SentBytes sent;
};

// The sum of what the ranks have sent. Collective.
SentBytes sent_by_all(Communicator& comm, const SentBytes& mine);

}  // namespace trimtab::cli
