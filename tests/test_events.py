"""Events as JSON, there and back."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from autogen_agentchat.messages import TextMessage, ThoughtEvent
from autogen_core.code_executor import CodeBlock, CodeResult
from autogen_core.models import RequestUsage
from hypothesis import given, settings
from hypothesis import strategies as st

from codeact_team import ConfinedSessionCodeExecutor
from codeact_team.agents.block_calls import AgentBlock
from codeact_team.batch.results import JobResult
from codeact_team.core import events
from codeact_team.core.effects import Event, OtherEvent
from codeact_team.core.execution import Artifact, BoundName, Outcome, SessionResult

_KINDS = [kind for kind in Event.kinds.values() if kind.__module__.startswith("codeact_team.")]
_WORDS = st.text(st.characters(exclude_categories=["Cs"]))
_JSON = st.recursive(st.none() | st.booleans() | st.integers() | _WORDS, lambda inner: st.lists(inner))
st.register_type_strategy(JobResult, st.builds(JobResult, expected=_JSON))


_each_kind = pytest.mark.parametrize("kind", [kind for kind in _KINDS if kind is not events.MessageSent])


def _made(kind: type[Any]) -> st.SearchStrategy[Event]:
    data = {"data": st.dictionaries(_WORDS, _JSON)} if kind is OtherEvent else {}
    return st.builds(kind, at=st.floats(0, 1e10), **data)


def comes_back(event: Event) -> None:
    line = json.dumps(events.dump(event))
    # as text, in which a number that is none equals itself
    assert json.dumps(events.dump(events.load(json.loads(line)))) == line
    assert type(events.load(json.loads(line))) is type(event)


@_each_kind
@settings(max_examples=5)
@given(st.data())
def test_whatever_an_event_holds_comes_back_from_json(kind: type[Any], data: st.DataObject) -> None:
    comes_back(data.draw(_made(kind)))


@pytest.mark.long
@_each_kind
@given(st.data())
def test_so_it_does_for_many_of_each_kind(kind: type[Any], data: st.DataObject) -> None:
    comes_back(data.draw(_made(kind)))


@given(_WORDS)
def test_messages_come_back_as_autogens(text: str) -> None:
    for message in (
        TextMessage(content=text, source="ann", models_usage=RequestUsage(1, 2), metadata={"a": text}),
        ThoughtEvent(content=text, source="bob"),
    ):
        loaded = events.load(json.loads(json.dumps(events.dump(events.MessageSent(message=message)))))
        assert isinstance(loaded, events.MessageSent)
        assert loaded.message == message


def test_artifacts_are_told_by_their_digest_and_never_by_their_bytes() -> None:
    result = SessionResult(
        exit_code=0,
        output="",
        outcome=Outcome.COMPLETED,
        names=[BoundName("x", "int")],
        artifacts=[Artifact("image/png", b"abc", other_forms={"text/plain": b"<Abc>"})],
    )

    async def never(_: list[CodeBlock]) -> CodeResult:
        raise NotImplementedError

    dumped = events.dump(AgentBlock(ConfinedSessionCodeExecutor(), [], never).end(result, None).event)
    assert dumped["artifacts"] == [
        {
            "mime_type": "image/png",
            "size": 3,
            "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "file": None,
            "other_forms": [
                {
                    "mime_type": "text/plain",
                    "size": 5,
                    "sha256": sha256(b"<Abc>").hexdigest(),
                }
            ],
        }
    ]
    assert dumped["names"] == [{"name": "x", "type": "int", "size": None, "preview": None}]


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(ValueError, match="type"):
        events.load({"type": "unheard_of"})
