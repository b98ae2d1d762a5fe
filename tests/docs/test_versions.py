"""The section "Versions" of the guide to plugins lists every deprecated name with its replacement."""

from __future__ import annotations

import re
from pathlib import Path

from recipe_core import Groups, PackedSegments
from recipe_core.data import prepare
from recipe_core.hooks.earlier import ENGINE, PARALLEL
from recipe_core.hooks.version import API

PAGE = Path(__file__).parents[2] / "docs/how-to/plugins/write-a-plugin.md"


def test_deprecated_names_are_listed() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("\n## Versions\n")[2]
    assert f"now {API})" in text
    listed = re.findall(r"^\| `(\S+)`.* \| `(\S+)` \|$", text, re.MULTILINE)
    methods = [("Parallel", PARALLEL), ("Engine", ENGINE), ("Run", {"together": "local_dp_ranks"})]
    expected = [(f"{owner}.{old}", f"{owner}.{new}") for owner, names in methods for old, new in names.items()]
    assert listed == [*expected, ("Groups", "PackedSegments"), ("Progress", "ProgressBar")]
    assert (Groups, prepare.Progress) == (PackedSegments, prepare.ProgressBar)
