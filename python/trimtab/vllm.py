# SPDX-License-Identifier: Apache-2.0
"""Trimtab's planner in vLLM: the entry point `vllm.general_plugins`.

vLLM looks its balancing policy up in vllm.distributed.eplb.policy.EPLB_POLICIES (0.14 and newer); register() puts
Trimtab's there as "default", so that all options, --eplb-config and asynchronous balancing included, stay as they are.
Environment variables say how it plans: trimtab.live_planning.Settings. VLLM_PLUGINS and TRIMTAB_EPLB_POLICY=off leave
vLLM's own.
"""

from __future__ import annotations

import inspect
import json
import logging
import os

from trimtab import live_planning
from trimtab.formats import read_placement
from trimtab.planning import Load

logger = logging.getLogger("vllm.trimtab")  # vLLM shows its own loggers only


def register() -> None:
    """Puts Trimtab's policy into vLLM; may be called any number of times, in every process. In a vLLM that is
    too old it says so in the log and changes nothing. Raises ValueError for settings that can't be (see Settings)."""
    settings = live_planning.Settings.from_environment()
    if settings.policy == "off" and not settings.record and not settings.placement:
        return
    try:
        from vllm.distributed.eplb import policy as policies

        own = policies.EPLB_POLICIES["default"]
        inspect.signature(own.rebalance_experts).parameters["old_global_expert_indices"]
    except (ImportError, AttributeError, KeyError) as error:
        logger.warning("Trimtab does not plan in this vLLM, but does in 0.14 and newer: there is no %s", error)
        return
    if not getattr(own, "is_trimtab", False):
        policies.EPLB_POLICIES["default"] = make_policy(policies.AbstractEplbPolicy, own, settings)
        logger.debug("Trimtab plans expert placements: %s", settings)


def make_policy(base: type, own: type, settings: live_planning.Settings) -> type:
    """A policy class for vLLM. base: vLLM's AbstractEplbPolicy. own: vLLM's default policy, which plans where Trimtab
    can't, and shows what this release wants returned."""
    returns_tables = _returns_tables(own)
    fixed = _Fixed(settings.placement) if settings.placement else None
    recorder = _Recorder(settings.record) if settings.record else None

    class TrimtabEplbPolicy(base):
        is_trimtab = True
        vllm_policy = own

        @classmethod
        def rebalance_experts(
            cls, weight, num_replicas, num_groups, num_nodes, num_ranks, old_global_expert_indices=None
        ):
            """A placement for these loads, as vLLM's AbstractEplbPolicy says.

            weight: tensor [layers, experts], tokens of each logical expert. num_replicas: slots of all ranks, a
            multiple of num_ranks. num_groups: expert groups, which only the policy deepseek heeds. num_nodes: ranks
            are numbered node by node. old_global_expert_indices: tensor [layers, slots], the map in use; experts that
            stay on their rank stay in their slot.

            Returns physical_to_logical_map, int64 [layers, num_replicas] on weight's device; up to vLLM 0.18
            also logical_to_physical_map [layers, experts, redundant + 1], -1 behind each expert's slots, and the
            number of slots of each expert. Depends on the arguments and settings alone, so all ranks get the same.
            """
            import torch

            def vllms_own():
                return own.rebalance_experts(
                    weight, num_replicas, num_groups, num_nodes, num_ranks, old_global_expert_indices
                )

            try:
                old = None if old_global_expert_indices is None else old_global_expert_indices.cpu().numpy()
                load = Load(live_planning.whole_tokens(weight.cpu().numpy()))
                if recorder is not None:
                    recorder.append(load)
                placement = fixed.get(load, num_replicas) if fixed is not None else None
                if placement is None and settings.policy == "off":
                    return vllms_own()
                if placement is None:
                    current = live_planning.current_placement(
                        old, load.num_layers, load.num_experts, num_ranks, num_replicas // num_ranks
                    )
                    nodes = num_nodes if num_ranks % num_nodes == 0 else 1
                    plan = settings.plan(load, current, nodes, num_groups)
                    if live_planning.is_first_rank():
                        logger.info("%s", plan)
                    placement = plan.placement
                physical_to_logical = placement.logical.astype("int64")
            except Exception:
                logger.exception("Trimtab could not plan; vLLM's own policy does")
                return vllms_own()
            maps = (physical_to_logical,)
            if returns_tables:
                width = num_replicas - load.num_experts + 1
                maps += live_planning.replica_tables(physical_to_logical, load.num_experts, width)
            tensors = tuple(torch.from_numpy(one).to(weight.device) for one in maps)
            return tensors if returns_tables else tensors[0]

    return TrimtabEplbPolicy


def _returns_tables(own: type) -> bool:
    """Whether this vLLM's policies return three tensors, not one."""
    import torch

    return isinstance(own.rebalance_experts(torch.ones(1, 2), 2, 1, 1, 1), tuple)


class _Fixed:
    """A placement from a file instead of plans, for models that it fits. Read at once: a file that is missing on one
    host must not make its ranks plan otherwise than the rest."""

    def __init__(self, file: str):
        self._file = file
        try:
            self._placement = read_placement(file).placement
        except ValueError:  # a format that does not say how many ranks there are, and here they do not matter
            self._placement = read_placement(file, num_ranks=1).placement

    def get(self, load: Load, num_replicas: int):
        placement = self._placement
        wanted = (load.num_layers, load.num_experts, num_replicas)
        if (placement.num_layers, placement.num_experts, placement.num_slots) == wanted:
            return placement
        logger.warning(
            "%s has %d layers of %d experts in %d slots, the model %d of %d in %d: planned instead",
            *(self._file, placement.num_layers, placement.num_experts, placement.num_slots, *wanted),
        )
        return None


class _Recorder:
    """Appends the loads of every replanning to a file of JSON lines, which `trimtab inspect`, `plan` and `replay` read.
    Of several models the first is recorded. That it can't be written changes nothing but the log: other ranks plan
    without a recorder, and all must plan the same."""

    def __init__(self, file: str):
        self._file = file
        self._shape = None
        self._step = 0

    def append(self, load: Load) -> None:
        shape = (load.num_layers, load.num_experts)
        if not live_planning.is_first_rank() or not load.counts.any() or self._shape not in (None, shape):
            return
        try:
            if self._shape is None and os.path.exists(self._file):
                with open(self._file) as earlier:
                    self._step = sum(1 for _ in earlier)
            self._shape = shape
            record = {
                "record_type": "eplb_load_stats",
                "version": 1,
                "step": self._step,
                "expert_load": load.counts[0].tolist(),
                "p2l_map": [list(range(load.num_experts))] * load.num_layers,
            }
            with open(self._file, "a") as file:
                file.write(json.dumps(record) + "\n")
            self._step += 1
        except OSError as error:
            logger.warning("the loads are not recorded: %s", error)
