"""A test in the place of the host that answers calls of tools."""

from __future__ import annotations

from support.interpreter import Call, Ran, RunningInterpreter


def works(interpreter: RunningInterpreter) -> bool:
    """Whether the next block can call, keeps the state, and nothing of earlier calls reaches it."""
    interpreter.start("tools.echo(kept)")
    call = interpreter.next_call()
    interpreter.answer(call.number, call.arguments["value"])
    return interpreter.finish().output == "'kept'\n"


def answer(interpreter: RunningInterpreter, call: Call) -> None:
    interpreter.answer(call.number, call.arguments["value"])


def interrupted(interpreter: RunningInterpreter, *calls: Call) -> Ran:
    """Interrupt the block that runs when it has written "ready", and cancel its calls, as the host does."""
    interpreter.interrupt_when_only("ready\n")
    for call in calls:
        interpreter.refuse(call.number, "cancelled", "cancelled")
    return interpreter.finish()
