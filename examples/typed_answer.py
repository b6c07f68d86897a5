"""An answer as a value: what the agent gives has to fit a Pydantic model, or it is told why not and goes on.

    OPENAI_API_KEY=… python examples/typed_answer.py

Needs Docker. In a YAML config, `output_schema` of the agent is a JSON Schema.
"""

import asyncio
import os

from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel, Field

from codeact_team import CodeActAgent, DockerSessionCodeExecutor, Ending, Scope


class LeapYears(BaseModel):
    count: int = Field(ge=0)
    last: int


async def main() -> None:
    model = OpenAIChatCompletionClient(model=os.environ.get("OPENAI_MODEL", "gpt-4.1"))
    async with Scope():
        agent = CodeActAgent("agent", model, DockerSessionCodeExecutor(), output_schema=LeapYears)
        result = await agent.run(
            task="How many leap years are there from 1900 to 2100, and which is the last?"
        )
    await model.close()
    message = result.messages[-1]
    if Ending.from_metadata(message.metadata) is Ending.ANSWERED:
        print(repr(LeapYears.model_validate_json(message.to_text())))
    else:
        # a limit was reached before
        print(f"no answer: {message.to_text()}")


if __name__ == "__main__":
    asyncio.run(main())
