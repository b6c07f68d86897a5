"""The smallest program of smolagents: it prints the answer to a task. Its code runs in the same process, unconfined."""

from __future__ import annotations

import os
import sys

from smolagents import CodeAgent, LogLevel, OpenAIServerModel

model = OpenAIServerModel("scripted", api_base=os.environ["OPENAI_BASE_URL"])
print(CodeAgent(tools=[], model=model, verbosity_level=LogLevel.OFF).run(sys.argv[1]))
