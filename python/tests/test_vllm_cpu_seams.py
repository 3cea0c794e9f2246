# SPDX-License-Identifier: Apache-2.0
"""Where trimtab.vllm_cpu meets vLLM: the recorded names of releases, and an installed vLLM."""

import importlib.metadata
import logging
import types

import pytest

pytest.importorskip("torch")

import record_vllm_cpu_seams  # noqa: E402
import recorded_vllm  # noqa: E402

from trimtab.vllm_cpu import plugin, seams  # noqa: E402

RELEASES = sorted(recorded_vllm.RECORDED)
NAMES = recorded_vllm.RECORDED[RELEASES[-1]]["names"]
EVERY_NAME = [(module, path) for module, names in NAMES.items() for path in names]


@pytest.mark.parametrize("release", RELEASES)
def test_released_vllm_has_every_name(release, monkeypatch):
    recorded = recorded_vllm.RECORDED[release]["names"]
    assert {m: set(names) for m, names in recorded.items()} == {
        m: set(names) for m, names in seams.NAMES.items()
    }, "record anew: tests/record_vllm_cpu_seams.py"
    recorded_vllm.install(monkeypatch, release)
    assert seams.problems() == []


@pytest.mark.parametrize(("module", "path"), EVERY_NAME)
def test_a_name_that_is_gone_leaves_vllm_as_it_is(module, path, monkeypatch, caplog):
    oracle = recorded_vllm.install(monkeypatch, RELEASES[-1], without=(module, path))
    own = getattr(oracle, "backend_to_kernel_cls", None)
    with caplog.at_level(logging.WARNING, "vllm.trimtab"):
        plugin.register()
    assert getattr(oracle, "backend_to_kernel_cls", None) is own
    if path == "current_platform.is_cpu":
        assert caplog.records == []  # no vLLM that tells where it runs
        return
    assert len(caplog.records) == 1
    text = caplog.records[0].getMessage()
    assert f"experts of vLLM {RELEASES[-1]}" in text and "there is no" in text
    assert path.split(".")[-1] in text


def test_a_parameter_that_is_gone_is_named(monkeypatch):
    record = recorded_vllm.RECORDED[RELEASES[-1]]["names"]
    module = next(m for m in record if m.endswith("oracle.unquantized"))
    monkeypatch.setitem(record[module], "backend_to_kernel_cls", ["kind"])
    oracle = recorded_vllm.install(monkeypatch, RELEASES[-1])
    monkeypatch.setattr(oracle, "backend_to_kernel_cls", lambda kind: [])
    assert seams.problems() == [f"{module}.backend_to_kernel_cls takes no backend"]


def test_a_new_method_that_experts_must_define_is_a_problem(monkeypatch):
    record = recorded_vllm.RECORDED[RELEASES[-1]]
    monkeypatch.setitem(record, "abstract", [*record["abstract"], "brand_new"])
    recorded_vllm.install(monkeypatch, RELEASES[-1])
    assert seams.problems() == ["experts must define brand_new, which is new"]


def test_registers_once_and_for_cpus_only(monkeypatch):
    oracle = recorded_vllm.install(monkeypatch, RELEASES[-1])
    plugin.register()
    wrapped = oracle.backend_to_kernel_cls
    plugin.register()
    assert oracle.backend_to_kernel_cls is wrapped
    ours, *others = oracle.backend_to_kernel_cls(recorded_vllm.Backend.CPU)
    assert ours.__name__ == "TrimtabExperts" and others == [recorded_vllm.OwnExperts]
    assert oracle.backend_to_kernel_cls(recorded_vllm.Backend.TRITON) == [recorded_vllm.OwnExperts]


def test_wrong_settings_end_the_start_of_an_engine(monkeypatch):
    recorded_vllm.install(monkeypatch, RELEASES[-1])
    plugin.register()
    assert recorded_vllm.engine_args().create_engine_config() == "config"
    good = {"trimtab": {"experts": "w4a8", "require": True}, "of others": 1}
    assert recorded_vllm.engine_args(good).create_engine_config() == "config"
    for bad, text in {
        "w4a8": "must be an object",
        ("expert", "w4a8"): "is experts meant?",
        ("experts", "w3"): "must be one of auto, f32",
        ("require", 1): "must be of type bool",
        ("timeout", 0): "must be at least 1",
        (("placement", "plan.json"), ("redundant", 2)): "leave redundant",
    }.items():
        pairs = [bad] if isinstance(bad[0], str) else bad
        settings = bad if isinstance(bad, str) else dict(pairs)
        with pytest.raises(ValueError, match=text.replace("?", r"\?")):
            recorded_vllm.engine_args({"trimtab": settings}).create_engine_config()


@pytest.mark.parametrize("as_object", [False, True])
def test_takes_eplb_over(monkeypatch, as_object):
    recorded_vllm.install(monkeypatch, RELEASES[-1])
    plugin.register()
    eplb = {"step_interval": 64, "num_redundant_experts": 4, "use_async": False}
    arguments = recorded_vllm.engine_args(
        {"trimtab": {"experts": "w8a8", "balancer": {"gate": False}}},
        enable_expert_parallel=True,
        enable_eplb=True,
        eplb_config=types.SimpleNamespace(**eplb) if as_object else eplb,
    )
    arguments.create_engine_config()
    assert not arguments.enable_eplb
    assert vars(arguments.eplb_config) == vars(recorded_vllm.EPLBConfig())
    assert arguments.additional_config["trimtab"] == {
        "experts": "w8a8",
        "balancer": {"interval": 64, "use_async": False, "gate": False},
        "redundant": 4,
    }


def test_eplb_without_expert_parallelism_is_refused(monkeypatch):
    recorded_vllm.install(monkeypatch, RELEASES[-1])
    plugin.register()
    with pytest.raises(ValueError, match="wants --enable-expert-parallel"):
        recorded_vllm.engine_args(enable_eplb=True).create_engine_config()


def test_eplb_stays_vllms_where_trimtab_is_off(monkeypatch):
    recorded_vllm.install(monkeypatch, RELEASES[-1])
    plugin.register()
    arguments = recorded_vllm.engine_args({"trimtab": {"enabled": False}}, enable_eplb=True)
    arguments.create_engine_config()
    assert arguments.enable_eplb


def test_require_is_an_error_in_a_vllm_that_trimtab_does_not_know(monkeypatch):
    recorded_vllm.install(monkeypatch, RELEASES[-1])
    monkeypatch.setattr(seams, "problems", lambda: ["there is no door"])
    plugin.register()
    assert recorded_vllm.engine_args().create_engine_config() == "config"
    with pytest.raises(ValueError, match="there is no door"):
        recorded_vllm.engine_args({"trimtab": {"require": True}}).create_engine_config()


def _vllm_cpu():
    for name in ("vllm-cpu", "vllm"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def test_installed_vllm_is_as_recorded():
    if _vllm_cpu() is None:
        pytest.skip("no vLLM is installed; tools/check_vllm_cpu.py runs this with its wheels")
    assert seams.problems() == []
    record = recorded_vllm.RECORDED.get(seams.version())
    if record is None:
        pytest.skip(f"vLLM {seams.version()} is not recorded; it has all that Trimtab uses")
    assert record_vllm_cpu_seams.recorded() == record["names"]
    assert record_vllm_cpu_seams.abstract_methods() == record["abstract"]
