"""A service that runs programs of strangers, each in a sandbox of its own that was started ahead. No model is needed.

    python examples/warm_sandboxes.py

Needs Docker. An executor that starts within the pool gets a sandbox that is ready; nobody gets one that was used.
"""

import asyncio

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from codeact_team import DockerSessionCodeExecutor, SandboxPool


def new_executor() -> DockerSessionCodeExecutor:
    return DockerSessionCodeExecutor(timeout=10, modules={"math": "math"})


async def serve(program: str) -> str:
    async with new_executor() as executor:
        result = await executor.execute_code_blocks([CodeBlock(program, "python")], CancellationToken())
    return result.output.strip()


async def main() -> None:
    async with SandboxPool(new_executor(), size=2) as pool:
        await pool.filled()
        print(f"{pool.ready} sandboxes are ready")
        programs = [f"import os; print(math.factorial({n}), os.listdir())" for n in (5, 10, 15)]
        for answer in await asyncio.gather(*map(serve, programs)):
            print(answer)


if __name__ == "__main__":
    asyncio.run(main())
