"""How a block that does not end by itself is made to end."""

from __future__ import annotations

import asyncio

import pytest
from support.liar import Liar
from support.waiting import until

from codeact_team.sandbox.system.framing import frame
from codeact_team.session import host as escalation
from codeact_team.session.protocol import Kind


async def test_a_block_that_goes_on_is_interrupted_once_more_before_it_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # code may swallow the first interrupt, as a destructor does
    monkeypatch.setattr(escalation, "INTERRUPT_GRACE", 0.02)
    sent: list[bytes] = []

    async def send(data: bytes) -> None:
        sent.append(data)

    ending = asyncio.create_task(escalation.escalate(Liar(b"", ends=False), send))
    await until(lambda: len(sent) == 3)
    assert sent == [frame(Kind.INTERRUPT), frame(Kind.INTERRUPT), frame(Kind.KILL)]
    ending.cancel()
    await asyncio.wait({ending})
