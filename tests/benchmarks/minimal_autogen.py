"""The smallest program of AutoGen's whose agent can run code: it prints the answer to a task. Its code would run unconfined."""

from __future__ import annotations

import asyncio
import sys

from autogen_agentchat.agents import CodeExecutorAgent
from autogen_core.models import ModelInfo
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True
)


async def main(task: str) -> None:
    async with LocalCommandLineCodeExecutor() as executor:
        client = OpenAIChatCompletionClient(model="scripted", model_info=INFO)
        result = await CodeExecutorAgent("agent", executor, model_client=client).run(task=task)
        print(result.messages[-1].to_text())
        await client.close()


asyncio.run(main(sys.argv[1]))
