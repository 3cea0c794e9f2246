# SPDX-License-Identifier: Apache-2.0
"""Uses the installed package as a new user does: python use.py TRIMTAB_COMMAND."""

import pathlib
import subprocess
import sys

import numpy as np
import trimtab

# It is the installed package, and it came with its stub.
package = pathlib.Path(trimtab.__file__).parent
assert package.is_relative_to(sys.prefix), package
assert "class MoeRuntime" in (package / "_core.pyi").read_text()

# A plan levels skewed loads.
rng = np.random.default_rng(7)
popularity = 200 / np.arange(1, 17)
counts = rng.poisson(popularity, (24, 3, 16))
plan = trimtab.plan(counts, ranks=4, slots=5)
before, after = plan.par_step_before.mean(), plan.par_step_after.mean()
assert 1 <= after < before - 0.1, (before, after)

# A replay: what is planned on one window is level on the next.
comparison = trimtab.compare(counts, ranks=4, slots=5, window=8, policies=["trim", "static"])
assert comparison["trim"].par_next_mean < comparison["static"].par_next_mean - 0.1, comparison

# The experts of a layer on three ranks, against numpy.
tokens, hidden, inner, experts, top_k = 9, 32, 24, 6, 2
gate_up = rng.standard_normal((experts, 2 * inner, hidden), np.float32)
down = rng.standard_normal((experts, hidden, inner), np.float32)
x = rng.standard_normal((tokens, hidden), np.float32)
ids = np.argsort(rng.random((tokens, experts)), axis=1)[:, :top_k].astype(np.int64)
weights = rng.random((tokens, top_k), np.float32)
layer = trimtab.ExpertWeights(gate_up, down, format="f32")
out = np.zeros_like(x)
trimtab.MoeRuntime([layer], top_k, ranks=3).forward(0, x, np.ascontiguousarray(ids), weights, out)
want = np.zeros_like(x, np.float64)
for t in range(tokens):
    for k in range(top_k):
        gate, up = np.split(gate_up[ids[t, k]].astype(np.float64) @ x[t], 2)
        want[t] += weights[t, k] * (down[ids[t, k]] @ (gate / (1 + np.exp(-gate)) * up))
error = np.abs(out - want).max() / np.abs(want).max()
assert error < 1e-5, error

# The command of the wheel plans too.
np.save("loads.npy", counts.astype(np.int32))
command = [
    sys.argv[1], "plan", "loads.npy", "--ranks", "4", "--slots", "5", "-o", "p.json", "--json"
]
subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
assert trimtab.read_placement("p.json").placement.logical.shape == (3, 20)
print(f"trimtab {trimtab.__version__} from a wheel: plan, replay, runtime and command work")
