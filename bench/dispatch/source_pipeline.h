// SPDX-License-Identifier: Apache-2.0
// The pipeline of the token dispatcher that this project's all_to_all is compared with
// (vLLM-Ascend's TokenDispatcherWithAll2AllV), step by step as it stands there: each step is a pass
// over all rows.
#pragma once

#include <memory>

#include "trimtab/dispatcher.h"

namespace trimtab::bench {

std::unique_ptr<Dispatcher> make_source_pipeline(const DispatchShape& shape, int rank);

}  // namespace trimtab::bench
