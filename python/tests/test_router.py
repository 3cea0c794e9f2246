# SPDX-License-Identifier: Apache-2.0
"""The router beside torch, written from the definitions."""

import numpy as np
import pytest

from trimtab import Router

torch = pytest.importorskip("torch")

TOKENS, EXPERTS = 37, 16


@pytest.fixture
def logits():
    return np.random.default_rng(3).standard_normal((TOKENS, EXPERTS), np.float32) * 2


def same_picks(ids, weights, wanted_ids, wanted_weights):
    assert ids.dtype == np.int32 and weights.dtype == np.float32
    assert np.array_equal(ids, wanted_ids.numpy())
    np.testing.assert_allclose(weights, wanted_weights.numpy(), rtol=2e-6)


def best_first(scores, ids):
    """Sorts each token's picks by score."""
    order = scores.gather(1, ids).argsort(dim=1, descending=True, stable=True)
    return ids.gather(1, order)


@pytest.mark.parametrize("groups, top_k", [(2, 2), (4, 4), (4, 8), (8, 8), (16, 16), (2, 8)])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [False, True])
def test_picks_in_every_group(logits, groups, top_k, scoring, renormalize):
    router = Router(
        EXPERTS,
        top_k,
        scoring=scoring,
        renormalize=renormalize,
        num_groups=groups,
        top_groups=groups,
        picks_in_every_group=True,
    )
    x = torch.from_numpy(logits)
    scores = x.softmax(1) if scoring == "softmax" else x.sigmoid()
    size = EXPERTS // groups
    inside = scores.view(TOKENS, groups, size).topk(top_k // groups, dim=2).indices
    ids = (inside + torch.arange(groups).view(1, -1, 1) * size).view(TOKENS, top_k)
    ids = best_first(scores, ids)
    weights = scores.gather(1, ids)
    if renormalize:
        weights = weights / weights.sum(1, keepdim=True)
    same_picks(*router.route(logits), ids.int(), weights)
    same_picks(*router.route(logits, threads=3), ids.int(), weights)
    assert (np.bincount((ids // size).ravel()) == TOKENS * top_k // groups).all()


def test_plain_top_k(logits):
    weights, ids = torch.from_numpy(logits).softmax(1).topk(3, dim=1)
    router = Router(EXPERTS, 3, renormalize=False, routed_scaling_factor=2.5)
    same_picks(*router.route(logits), ids.int(), weights * 2.5)
    assert (router.num_experts, router.top_k) == (EXPERTS, 3)


def test_limited_groups_with_a_bias(logits):
    """DeepSeek-V3: the best two of four groups by the sum of two biased scores."""
    bias = np.random.default_rng(4).standard_normal(EXPERTS).astype(np.float32) / 4
    router = Router(
        EXPERTS,
        3,
        scoring="sigmoid",
        num_groups=4,
        top_groups=2,
        group_score="top2_sum",
        selection_bias=bias.tolist(),
    )
    scores = torch.from_numpy(logits).sigmoid()
    biased = scores + torch.from_numpy(bias)
    kept = biased.view(TOKENS, 4, 4).topk(2, dim=2).values.sum(2).topk(2, dim=1).indices
    dropped = torch.ones(TOKENS, 4, dtype=torch.bool).scatter(1, kept, False)
    masked = biased.masked_fill(dropped.repeat_interleave(4, dim=1), float("-inf"))
    ids = masked.topk(3, dim=1).indices
    weights = scores.gather(1, ids)
    same_picks(*router.route(logits), ids.int(), weights / weights.sum(1, keepdim=True))


def test_forced_balance_replay_and_appended_experts(logits):
    options = {"num_groups": 4, "top_groups": 4, "picks_in_every_group": True}
    routed_ids, routed_weights = Router(EXPERTS, 8, **options).route(logits)
    forced, weights = Router(EXPERTS, 8, force_balance=True, **options).route(logits)
    assert np.array_equal(weights, routed_weights) and not np.array_equal(forced, routed_ids)
    for row in forced:
        assert np.bincount(row // 4).tolist() == [2] * 4 and len(set(row)) == 8
    appended = Router(EXPERTS, 8, num_appended_experts=1, **options)
    ids, weights = appended.route(logits)
    assert np.array_equal(ids[:, :8], routed_ids) and (ids[:, 8] == EXPERTS).all()
    assert (weights[:, 8] == 1).all()
    again, _ = Router(EXPERTS, 8, **options).route(logits[::-1].copy(), picks=routed_ids)
    assert np.array_equal(again, routed_ids)
    with pytest.raises(ValueError, match="as many in every group"):
        Router(EXPERTS, 8, **options).route(logits, picks=np.zeros((TOKENS, 8), np.int32))


@pytest.mark.parametrize(
    "options, text",
    [
        ({"top_k": 6, "num_groups": 4, "top_groups": 4}, "multiple of num_groups = 4"),
        ({"top_k": 4}, "needs groups"),
        ({"top_k": 4, "num_groups": 4, "top_groups": 2}, "no group is dropped"),
        ({"top_k": 4, "scoring": "tanh"}, "there are softmax, sigmoid, sqrtsoftplus"),
        ({"top_k": 4, "group_score": "sum"}, "there are max, top2_sum"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        Router(EXPERTS, picks_in_every_group=True, **options)


def test_shapes_are_checked(logits):
    router = Router(EXPERTS, 2)
    assert router.route(logits[:0])[0].shape == (0, 2)
    with pytest.raises(ValueError, match="logits are"):
        router.route(logits[:, :8].copy())
    with pytest.raises(ValueError, match="picks has"):
        router.route(logits, picks=np.zeros((3, 2), np.int32))
    logits[5, 3] = np.nan
    with pytest.raises(ValueError, match="token 5 for expert 3"):
        router.route(logits)
