# SPDX-License-Identifier: Apache-2.0
"""A page of HTML that a notebook draws."""

from __future__ import annotations

import dataclasses
import html as escaping
import os


@dataclasses.dataclass(frozen=True)
class Page:
    """A whole page: style, script and data are in it, and it needs no network. A notebook shows it
    as the value of a cell, in a frame of its own, so that neither changes how the other looks."""

    html: str
    height: int = 900  # of the frame in a notebook, in CSS pixels

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{escaping.escape(self.html)}" '
            'sandbox="allow-scripts allow-downloads" loading="lazy" '
            f'style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )

    def __repr__(self) -> str:
        return f"Page({len(self.html)} characters of HTML; .write(path) makes it a file)"

    def write(self, path: str | os.PathLike) -> None:
        """To a file that any browser shows."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.html)
