"""Teach the executor another language: a label, and the command that runs a file.

    python examples/custom_language.py

Needs Docker, no model: the code blocks are given. Perl comes with the image; any other interpreter or compiler is one
entry and an image that has it, such as {"c": "sh -c 'gcc -x c \\"$0\\" -o /tmp/program && /tmp/program'"}.
"""

import asyncio

from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken

from codeact_team import CodeExecutorAgent, DockerCommandLineCodeExecutor

MESSAGE = """Two languages, one workspace:

```sh
printf 'b 2\\na 1\\n' > pairs.txt
```

```perl
open my $file, '<', 'pairs.txt' or die;
print sort <$file>;
```
"""


async def main() -> None:
    async with DockerCommandLineCodeExecutor(languages={"perl": "perl -w"}) as executor:
        agent = CodeExecutorAgent("executor", executor)
        response = await agent.on_messages([TextMessage(content=MESSAGE, source="user")], CancellationToken())
        print(response.chat_message.to_text())


if __name__ == "__main__":
    asyncio.run(main())
