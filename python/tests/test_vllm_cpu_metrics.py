# SPDX-License-Identifier: Apache-2.0
"""The balancer's metrics on the page of vLLM's server."""

import logging
import os

import pytest

pytest.importorskip("torch")

import recorded_vllm  # noqa: E402

from trimtab.vllm_cpu import metrics, plugin  # noqa: E402

RELEASES = sorted(recorded_vllm.RECORDED)
TEXT = """# HELP trimtab_moves_total Expert weights that moved to a slot.
# TYPE trimtab_moves_total counter
trimtab_moves_total {moves}
# HELP trimtab_stall_seconds_total Time by which balancing held up steps.
# TYPE trimtab_stall_seconds_total counter
trimtab_stall_seconds_total {seconds}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(metrics.FOLDER, str(tmp_path))
    return tmp_path


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def update(writer, clock, step, moves=0, after=2.0):
    clock.now += after
    writer.update(step, lambda: TEXT.format(moves=moves, seconds=clock.now))


def value_of(file, name):
    (line,) = [line for line in file.read_text().splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def test_writes_once_in_a_second(folder):
    clock, file = Clock(), folder / "0.prom"
    writer = metrics.Writer(0, 16, clock)
    update(writer, clock, 1, after=0)
    assert value_of(file, "trimtab_steps_total") == 1
    update(writer, clock, 2, after=0.5)
    assert value_of(file, "trimtab_steps_total") == 1
    update(writer, clock, 3, moves=4, after=0.6)
    assert value_of(file, "trimtab_steps_total") == 3
    assert value_of(file, "trimtab_moves_total") == 4
    assert [path.name for path in folder.iterdir()] == ["0.prom"]


def test_a_balancer_without_progress_is_not_alive(folder):
    clock, file = Clock(), folder / "0.prom"
    writer = metrics.Writer(0, 16, clock)

    def alive(step, after, moves=1):
        update(writer, clock, step, moves, after)
        return value_of(file, "trimtab_alive") == 1

    assert alive(1, after=0)
    assert alive(1000, after=metrics.STALL_SECONDS)  # many steps, but in a short time
    assert not alive(1001, after=2)
    assert alive(1002, after=2, moves=2)
    assert alive(1003, after=2 * metrics.STALL_SECONDS, moves=2)  # nobody has asked anything


def test_nothing_is_written_where_nobody_asked_for_it(tmp_path, monkeypatch):
    monkeypatch.delenv(metrics.FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    update(metrics.Writer(0, 16, Clock()), Clock(), 1)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_said_once(folder, caplog):
    clock = Clock()
    writer = metrics.Writer(0, 16, clock)
    folder.rmdir()
    with caplog.at_level(logging.WARNING, "vllm.trimtab"):
        update(writer, clock, 1)
        update(writer, clock, 2)
    assert len(caplog.records) == 1


def page(registry):
    from prometheus_client import generate_latest

    return generate_latest(registry).decode()


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("servers", [1, 2])
def test_vllms_page_has_them(release, servers, tmp_path, monkeypatch):
    reason = "no prometheus_client; tools/check_vllm_cpu.py runs this with vLLM's"
    prometheus_client = pytest.importorskip("prometheus_client", reason=reason)
    recorded_vllm.install(monkeypatch, release)
    import vllm.v1.metrics.prometheus as vllms
    from prometheus_client import multiprocess

    registry = prometheus_client.CollectorRegistry()
    monkeypatch.setattr(vllms, "get_prometheus_registry", lambda: registry)
    monkeypatch.setattr(
        multiprocess.MultiProcessCollector, "collect", multiprocess.MultiProcessCollector.collect
    )
    if servers > 1:  # each request then has a registry of its own, with the files of all processes
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
        multiprocess.MultiProcessCollector(registry)
    monkeypatch.setenv(metrics.FOLDER, str(tmp_path / "of another engine, which is gone"))
    plugin.register()
    settings = {"trimtab": {"balancer": {"interval": 16}}}
    for _ in range(2):  # also the API servers read the settings
        recorded_vllm.engine_args(settings, enable_expert_parallel=True).create_engine_config()
    assert "trimtab" not in page(registry)
    for number in range(2):
        clock = Clock()
        update(metrics.Writer(number, 16, clock), clock, 5, moves=number + 3)
    lines = page(registry).splitlines()
    assert 'trimtab_moves_total{group="0"} 3.0' in lines
    assert 'trimtab_moves_total{group="1"} 4.0' in lines
    assert 'trimtab_steps_total{group="0"} 5.0' in lines
    assert 'trimtab_alive{group="1"} 1.0' in lines
    assert lines.count("# TYPE trimtab_moves_total counter") == 1


def test_an_engine_without_a_balancer_has_none(monkeypatch):
    recorded_vllm.install(monkeypatch, RELEASES[-1])
    import vllm.v1.metrics.prometheus as vllms

    monkeypatch.delenv(metrics.FOLDER, raising=False)
    asked = []
    monkeypatch.setattr(vllms, "get_prometheus_registry", lambda: asked.append(True))
    plugin.register()
    recorded_vllm.engine_args().create_engine_config()
    assert not asked and metrics.FOLDER not in os.environ
