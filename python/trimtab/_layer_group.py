# SPDX-License-Identifier: Apache-2.0
"""The layers of one model that share a runtime, and what is done before each step of theirs."""

from ._core import MoeRuntime
from ._options import is_dynamic
from .balancer import Balancer


class LayerGroup:
    """Layers of one model that are alike, and so share a runtime."""

    def __init__(self, options):
        self.options = options
        self.layers = []
        self.rows = []  # with a placement: of each layer, the experts in its slots
        self.runtimes = {}  # by top_k; one as a rule
        self.balancers = {}  # likewise, with eplb="dynamic", from the second step on
        self.stepped = set()  # top_k of those that have begun a step

    def add(self, weights, row=None):
        self.layers.append(weights)
        self.rows.append(row)
        for runtime in self.runtimes.values():
            runtime.add_layer(weights)
        return len(self.layers) - 1

    def before(self, layer, top_k):
        """What is to be done before a layer's call: the first layer begins a step."""
        eplb = self.options.eplb
        if layer != 0 or not is_dynamic(eplb):
            return
        if top_k in self.balancers:
            self.balancers[top_k].step()
        elif top_k in self.stepped:
            # Now all layers are there, also those that are packed when they are first used.
            self.balancers[top_k] = Balancer(
                self.runtimes[top_k], **(eplb if isinstance(eplb, dict) else {})
            )
        self.stepped.add(top_k)

    def runtime(self, top_k):
        runtime = self.runtimes.get(top_k)
        if runtime is None:
            o = self.options
            runtime = MoeRuntime(
                self.layers,
                top_k,
                ranks=o.ranks,
                threads=o.threads,
                dispatcher=o.dispatcher,
                max_tokens=o.max_tokens,
                row_budget=o.row_budget,
                split=o.split,
                cost=o.cost,
            )
            for layer, row in enumerate(self.rows):
                if row is not None:
                    runtime.place(layer, row)
            self.runtimes[top_k] = runtime
        return runtime
