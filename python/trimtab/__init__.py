# SPDX-License-Identifier: Apache-2.0
"""Fast and level mixture-of-experts layers over many ranks.

`trimtab.transformers` runs the experts of Hugging Face models. `plan`, `compare` and
`read_recording` find placements from recorded expert loads; `trimtab.vllm` and `trimtab.sglang` do
so inside those engines. A mistake of the caller or a bad file raises ValueError (`FormatError`);
any other failure raises RuntimeError (`CommError` when a rank fails). Both have the text of the C++
library.
"""

from ._core import (
    CommError,
    ExpertWeights,
    FormatError,
    MeasuredCost,
    MoeRuntime,
    ParallelLayout,
    RankGroup,
    RankRuntime,
    Router,
    host_id,
    kernel_isa,
    read_costs,
    weight_formats,
)
from ._core import version as __version__
from .balancer import Balancer
from .comparison import Comparison, PolicyResult, compare
from .formats import (
    FileFormat,
    PlacementFile,
    Recording,
    file_formats,
    merge_recordings,
    read_placement,
    read_recording,
)
from .page import Page
from .planning import (
    CostModel,
    History,
    Load,
    Placement,
    Plan,
    Policy,
    SplitTable,
    default_placement,
    even_nodes,
    make_policy,
    noise_floor,
    par,
    par_per_step,
    plan,
    policy_names,
)

__all__ = [
    "Balancer",
    "CommError",
    "Comparison",
    "CostModel",
    "ExpertWeights",
    "FileFormat",
    "FormatError",
    "History",
    "Load",
    "MeasuredCost",
    "MoeRuntime",
    "Page",
    "ParallelLayout",
    "Placement",
    "PlacementFile",
    "Plan",
    "Policy",
    "PolicyResult",
    "RankGroup",
    "RankRuntime",
    "Recording",
    "Router",
    "SplitTable",
    "__version__",
    "compare",
    "default_placement",
    "even_nodes",
    "file_formats",
    "host_id",
    "kernel_isa",
    "make_policy",
    "merge_recordings",
    "noise_floor",
    "par",
    "par_per_step",
    "plan",
    "policy_names",
    "read_costs",
    "read_placement",
    "read_recording",
    "weight_formats",
]
