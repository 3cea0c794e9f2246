# SPDX-License-Identifier: Apache-2.0
"""Stands in for vLLM and SGLang as far as the plug-ins meet them: packages with the same names and
signatures, written here.

surround() writes the modules around the balancers, contract_balancer() the balancers themselves and
the plug-in loaders. tools/check_engine_plugins.py puts the real ones, from released wheels, between
the same surroundings.
"""

import contextlib
import importlib
import os
import pathlib
import sys
import tomllib

# Why a test of an installed engine is left out.
NOT_INSTALLED = "not installed; tools/check_engine_plugins.py runs the same with released wheels"

# What the real balancers and loaders import, in the least form that carries them.
SURROUNDINGS = {
    "vllm": {
        "vllm/__init__.py": "",
        "vllm/envs.py": """
            import os
            names = os.environ.get("VLLM_PLUGINS")
            VLLM_PLUGINS = None if names is None else names.split(",")
            """,
        "vllm/config/__init__.py": """
            class ModelConfig: ...
            class ParallelConfig: ...
            current = None
            def get_current_vllm_config():
                assert current is not None, "not set"
                return current
            """,
        "vllm/config/utils.py": """
            def compute_hash_cached(config):
                return config.compute_hash()
            """,
        "vllm/config/parallel.py": """
            from typing import Literal
            EPLBPolicyOption = Literal["default"]
            """,
        "vllm/distributed/__init__.py": "",
        "vllm/distributed/parallel_state.py": """
            class Group:
                ranks = [0, 1]
            def get_eplb_group():
                assert False, "EPLB group is not initialized"
            def get_ep_group():
                return Group
            def get_node_count():
                return 1
            def in_the_same_node_as(group, rank):
                return [True] * group.size()
            class GroupCoordinator: ...
            """,
        "vllm/distributed/eplb/__init__.py": "",
        # What the real eplb_state.py imports.
        "vllm/distributed/eplb/async_worker.py": "def start_async_worker(state, **_): ...",
        "vllm/distributed/eplb/eplb_communicator.py": """
            class EplbCommunicator: ...
            def create_eplb_communicator(*args, **kwargs):
                return EplbCommunicator()
            """,
        "vllm/distributed/eplb/eplb_utils.py": """
            class CpuGpuEvent:
                def record(self): ...
                def wait(self, stream=None): ...
            """,
        "vllm/distributed/eplb/rebalance_execute.py": """
            class AsyncEplbLayerResult: ...
            class RecvMetadata: ...
            def move_from_buffer(*args, **kwargs): ...
            def rearrange_expert_weights_inplace(*args, **kwargs): ...
            """,
        "vllm/distributed/stateless_coordinator.py": "class StatelessGroupCoordinator: ...",
        "vllm/distributed/utils.py": "class StatelessProcessGroup: ...",
        "vllm/logger.py": """
            import logging
            def init_logger(name):
                return logging.getLogger(name)
            """,
        "vllm/model_executor/__init__.py": "",
        "vllm/model_executor/models/__init__.py": "",
        "vllm/model_executor/models/interfaces.py": "class MixtureOfExperts: ...",
        "vllm/platforms/__init__.py": """
            class current_platform:
                @staticmethod
                def is_rocm():
                    return False
            """,
        "vllm/utils/__init__.py": "",
        "vllm/utils/gpu_sync_debug.py": """
            import contextlib
            def gpu_sync_allowed():
                return contextlib.nullcontext()
            """,
        "vllm/utils/torch_utils.py": "PIN_MEMORY = False",
    },
    "sglang": {
        "sglang/__init__.py": "",
        "sglang/srt/__init__.py": "",
        "sglang/srt/environ.py": """
            import os
            class Text:
                def __init__(self, name):
                    self.name = name
                def get(self):
                    return os.environ.get(self.name)
            class envs:
                SGLANG_PLUGINS = Text("SGLANG_PLUGINS")
                SGLANG_PLATFORM = Text("SGLANG_PLATFORM")
            """,
        "sglang/srt/distributed/__init__.py": "",
        "sglang/srt/distributed/parallel_state.py": """
            class Group:
                ranks = [0, 1]
            def get_tp_group():
                return Group
            """,
        "sglang/srt/elastic_ep/__init__.py": "",
        "sglang/srt/elastic_ep/elastic_ep.py": """
            import types
            import torch
            class ElasticEPStateManager:
                state = None
                @classmethod
                def instance(cls):
                    return cls.state
                @classmethod
                def healthy_rank_state(cls):
                    return torch.ones(cls.world_size, dtype=torch.int32)
            """,
        "sglang/srt/eplb/__init__.py": "",
        "sglang/srt/eplb/expert_location.py": """
            metadata = None
            def get_global_expert_location_metadata():
                return metadata
            """,
    },
}

_VLLM_POLICY = """
    import torch
    class AbstractEplbPolicy:
        @classmethod
        def rebalance_experts(cls, weight, num_replicas, num_groups, num_nodes, num_ranks,
                              old_global_expert_indices=None):
            raise NotImplementedError
    class DefaultEplbPolicy(AbstractEplbPolicy):
        @classmethod
        def rebalance_experts(cls, weight, num_replicas, num_groups, num_nodes, num_ranks,
                              old_global_expert_indices=None):
            layers, experts = weight.shape
            phy2log = (torch.arange(num_replicas) % experts).repeat(layers, 1).to(weight.device)
            if not RETURNS_TABLES:
                return phy2log
            slots = torch.full((layers, experts, num_replicas - experts + 1), -1)
            for expert in range(experts):
                of_expert = torch.arange(expert, num_replicas, experts)
                slots[:, expert, : len(of_expert)] = of_expert
            return phy2log, slots, (slots >= 0).sum(-1)
    EPLB_POLICIES = {"default": DefaultEplbPolicy}
    """

_VLLM_PLUGINS = """
    from importlib.metadata import entry_points
    import vllm.envs as envs
    loaded = False
    def load_general_plugins():
        global loaded
        if loaded:
            return
        loaded = True
        for plugin in entry_points(group="vllm.general_plugins"):
            if envs.VLLM_PLUGINS is None or plugin.name in envs.VLLM_PLUGINS:
                plugin.load()()
    """

# Loads, their window and the asynchronous rearrangement, as far as the plug-in meets them.
_VLLM_STATE = """
    import types
    import torch
    from vllm.distributed import parallel_state
    from vllm.distributed.eplb.policy import EPLB_POLICIES
    class EplbState:
        def __init__(self, parallel_config, device):
            self.parallel_config = parallel_config
            self.model_states = {}
            self.expert_load_window_step = 0
            self.async_worker = None
        def add_model(self, model, model_config, model_name=None):
            options = self.parallel_config.eplb_config
            self.is_async = options.use_async
            self.expert_load_window_size = options.window_size
            self.expert_rearrangement_step_interval = options.step_interval
            self.expert_rearrangement_step = options.step_interval * 3 // 4
            self.policy = EPLB_POLICIES[options.policy]
            slots = (model.num_moe_layers, model.num_physical_experts)
            of_slot = torch.arange(model.num_physical_experts) % model.num_logical_experts
            self.model_states[model_config.compute_hash()] = types.SimpleNamespace(
                model=model,
                physical_to_logical_map=of_slot.repeat(model.num_moe_layers, 1),
                expert_load_pass=torch.zeros(slots, dtype=torch.int32),
                expert_load_window=torch.zeros((options.window_size, *slots), dtype=torch.int32),
                rebalanced=False, pending_result=None, eplb_stats=None,
            )
        def step(self, is_dummy=False, is_profile=False, log_stats=False):
            if is_profile:
                self.rearrange(is_profile=True)
                return
            for state in self.model_states.values():
                if not is_dummy:
                    row = state.expert_load_window[self.expert_load_window_step]
                    row.copy_(state.expert_load_pass)
                state.expert_load_pass.zero_()
            if not is_dummy:
                self.expert_load_window_step += 1
                self.expert_load_window_step %= self.expert_load_window_size
            self.expert_rearrangement_step += 1
            if self.expert_rearrangement_step < self.expert_rearrangement_step_interval:
                return
            if any(state.rebalanced for state in self.model_states.values()):
                return
            self.expert_rearrangement_step = 0
            self.rearrange()
        def rearrange(self, is_profile=False, rank_mapping=None):
            group = parallel_state.get_ep_group()
            for state in self.model_states.values():
                held = state.physical_to_logical_map.expand_as(state.expert_load_window)
                sizes = (*state.expert_load_window.shape[:2], state.model.num_logical_experts)
                loads = torch.zeros(sizes, dtype=torch.int32)
                total = loads.scatter_add_(-1, held, state.expert_load_window).sum(dim=0)
                torch.distributed.all_reduce(total, group=group.device_group)
                numbers = dict(num_replicas=held.shape[-1], num_groups=1, num_nodes=1,
                               num_gpus=group.device_group.size())
                if is_profile:
                    self.policy.rebalance_experts(
                        total, *numbers.values(), state.physical_to_logical_map)
                    continue
                state.eplb_stats = types.SimpleNamespace(
                    global_expert_load_window=total, **numbers)
                state.rebalanced = True
    """

_SGLANG_ALGORITHMS = """
    from enum import Enum, auto
    import torch
    class EplbAlgorithm(Enum):
        deepseek = auto()
        elasticity_aware = auto()
    def rebalance_experts(tokens_per_expert, num_physical_experts, num_local_physical_experts,
                          num_groups, num_nodes, algorithm):
        _, layers, experts = tokens_per_expert.shape
        phy2log = (torch.arange(num_physical_experts) % experts).repeat(layers, 1)
        count = torch.ones(layers, experts, dtype=torch.int64)
        return phy2log, torch.arange(experts).repeat(layers, 1).unsqueeze(-1), count
    """

_SGLANG_HOOKS = """
    from enum import Enum
    import pkgutil
    class HookType(Enum):
        AFTER = "after"
        REPLACE = "replace"
    class HookRegistry:
        hooks = []
        @classmethod
        def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
            cls.hooks.append((target, hook, hook_type))
        @classmethod
        def apply_hooks(cls):
            for target, hook, hook_type in cls.hooks:
                assert hook_type == HookType.REPLACE
                module, name = target.rsplit(".", 1)
                setattr(pkgutil.resolve_name(module), name,
                        lambda *args, **kwargs: hook(*args, **kwargs))
    """

_SGLANG_PLUGINS = """
    from importlib.metadata import entry_points
    from sglang.srt.environ import envs
    from sglang.srt.plugins.hook_registry import HookRegistry
    def load_plugins():
        allowed = envs.SGLANG_PLUGINS.get()
        for plugin in entry_points(group="sglang.srt.plugins"):
            if not allowed or plugin.name in allowed.split(","):
                plugin.load()()
        HookRegistry.apply_hooks()
    """

# The least that the engines promise: signatures, types, how plug-ins are found.
CONTRACTS = {
    "vllm-tables": {
        "vllm/distributed/eplb/policy/__init__.py": "RETURNS_TABLES = True" + _VLLM_POLICY,
        "vllm/plugins/__init__.py": _VLLM_PLUGINS,
    },
    "vllm-map": {
        "vllm/distributed/eplb/policy/__init__.py": "RETURNS_TABLES = False" + _VLLM_POLICY,
        "vllm/distributed/eplb/eplb_state.py": _VLLM_STATE,
        "vllm/plugins/__init__.py": _VLLM_PLUGINS,
    },
    "sglang": {
        "sglang/srt/eplb/eplb_algorithms/__init__.py": _SGLANG_ALGORITHMS,
        "sglang/srt/plugins/__init__.py": _SGLANG_PLUGINS,
        "sglang/srt/plugins/hook_registry.py": _SGLANG_HOOKS,
    },
}
# Of a wheel, what surround() leaves out.
REAL_PARTS = {
    "vllm": (
        "vllm/distributed/eplb/policy/",
        "vllm/distributed/eplb/eplb_state.py",
        "vllm/plugins/__init__.py",
    ),
    "sglang": ("sglang/srt/eplb/eplb_algorithms/", "sglang/srt/plugins/"),
}


def write(folder, files):
    for name, text in files.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        first, *rest = text.split("\n", 1)
        path.write_text(first + "\n" + _dedented(rest[0]) if rest else text)


def _dedented(text):
    import textwrap

    return textwrap.dedent(text)


def surround(folder, engine):
    write(folder, SURROUNDINGS[engine])
    _write_entry_points(folder)


def contract_balancer(folder, name):
    surround(folder, name.split("-")[0])
    write(folder, CONTRACTS[name])


def _write_entry_points(folder):
    """As pip would from pyproject.toml."""
    pyproject = pathlib.Path(__file__).parents[2] / "pyproject.toml"
    project = tomllib.loads(pyproject.read_text())["project"]
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    metadata = "Metadata-Version: 2.1\nName: trimtab\nVersion: 0"
    write(folder, {"trimtab-0.dist-info/entry_points.txt": "\n".join(lines),
                   "trimtab-0.dist-info/METADATA": metadata})


def real_folders(engine):
    """The folders ENGINE-VERSION below TRIMTAB_ENGINES, made by tools/check_engine_plugins.py."""
    root = os.environ.get("TRIMTAB_ENGINES")
    return sorted(pathlib.Path(root).glob(f"{engine}-*")) if root else []


@contextlib.contextmanager
def importable(folder, engine):
    """The engine's package from this folder, and afterwards none of it."""
    def forget():
        for name in [name for name in sys.modules if name.split(".")[0] == engine]:
            del sys.modules[name]

    forget()
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        forget()
