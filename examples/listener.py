"""A listener of your own: prints the tokens of each model call and the exit code of each block as they happen.

    python examples/listener.py

Needs neither a key nor Docker: the model is a recorded one.
"""

import asyncio

from codeact_team import BlockEnded, Dispatcher, Event, ModelCallEnded, open_team


def show(event: Event) -> None:
    match event:
        case ModelCallEnded(usage=usage) if usage is not None:
            print(
                f"{event.agent} asked {event.model}: {usage.prompt_tokens} in, {usage.completion_tokens} out"
            )
        case BlockEnded():
            print(f"{event.agent} ran code: exit code {event.exit_code} after {event.seconds:.1f} s")
        case _:
            pass


async def main() -> None:
    with Dispatcher() as dispatcher:
        dispatcher.listen(show)
        async with open_team("quickstart-codeact") as team:
            await team.run(task="What did the bakery sell?")


if __name__ == "__main__":
    asyncio.run(main())
