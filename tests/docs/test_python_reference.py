"""The page about the Python API has every public name."""

from __future__ import annotations

import re

from documents import PAGES, blocks_of

import codeact_team


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    entries = "".join(
        block.text for block in blocks_of(PAGES["reference/python"]) if block.language == "{eval-rst}"
    )
    named = re.findall(r"^\.\. auto(?:class|data|function|exception):: (\w+)$", entries, re.MULTILINE)
    # a page of their own has all of them
    events = {kind.__name__ for kind in codeact_team.Event.kinds.values()} & {*codeact_team.__all__}
    assert sorted({*named, *events}) == codeact_team.__all__
