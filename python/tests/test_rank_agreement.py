# SPDX-License-Identifier: Apache-2.0
"""All ranks of an engine take the same placement, whatever goes wrong on one of them."""

import json
import logging
import pathlib
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import engines  # noqa: E402

from trimtab import rank_agreement  # noqa: E402

OWN = [[0, 1, 2, 3, 4, 5, 6, 7, 0, 1]]  # what the contract packages plan

logger = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The placements that ranks 0 and 1 took, by engine and case."""
    folder = tmp_path_factory.mktemp("ranks")
    engines.contract_balancer(folder, "vllm-map")
    engines.contract_balancer(folder, "sglang")
    program = pathlib.Path(__file__).with_name("plugin_rank.py")
    environment = {"PYTHONPATH": f"{folder}:" + ":".join(path for path in sys.path if path)}
    processes = [
        subprocess.Popen([sys.executable, program, str(rank), folder], env=environment)
        for rank in range(3)
    ]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("case", ["alike", "alike again"])
def test_ranks_that_agree_take_the_plan(ranks, engine, case):
    first, second = (rank[f"{engine} {case}"] for rank in ranks)
    assert first == second != OWN


@pytest.mark.parametrize(
    "case",
    [
        *("vllm one fails", "vllm one has other settings", "vllm one has no plan"),
        *("sglang one fails", "sglang one has other settings"),
        "vllm one has another file",
    ],
)
def test_where_they_differ_all_take_the_engines_own(ranks, case):
    assert [rank[case] for rank in ranks] == [OWN, OWN]


def test_a_rank_that_does_not_answer_is_waited_for_once(ranks):
    assert ranks[0]["vllm one does not answer"] == OWN
    first, later = ranks[0]["seconds"]
    assert 1 < first < 30 and later < 1


class TestWithoutOtherRanks:
    def test_a_plan_is_used(self):
        assert rank_agreement.all_have(np.zeros((1, 2), np.int64), None, logger)

    def test_no_plan_is_none(self):
        assert not rank_agreement.all_have(None, None, logger)


class TestRanksOfEngine:
    def test_an_engine_that_is_not_there_has_none(self):
        assert rank_agreement.ranks_of_engine("no_such_engine.groups", ("get_group",), 2) is None

    def test_the_first_group_of_this_release(self, tmp_path):
        engines.write(
            tmp_path,
            {
                "vllm/__init__.py": "",
                "vllm/groups.py": """
                class Group:
                    ranks = [4, 5]
                def get_new():
                    assert False, "not made yet"
                def get_old():
                    return Group
                """,
            },
        )
        with engines.importable(tmp_path, "vllm"):
            getters = ("get_newest", "get_new", "get_old")
            assert rank_agreement.ranks_of_engine("vllm.groups", getters, 2) == [4, 5]
