"""Data analysis in a sandbox, on a database that stays on this machine: the code gets rows, never the file.

    OPENAI_API_KEY=… python examples/sqlite_tools.py

Needs Docker. The interpreter keeps what it has fetched, so the second question costs no further query.
"""

import asyncio
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from autogen_ext.models.openai import OpenAIChatCompletionClient

from codeact_team import CodeActAgent, DockerSessionCodeExecutor, Scope

ROWS = [("north", 3, 120.0), ("south", 1, 80.0), ("north", 2, 60.0), ("west", 7, 15.5), ("south", 4, 22.5)]
QUESTIONS = ["Which region has the largest revenue?", "And which one sold the most pieces?"]


def make_database(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE sales (region TEXT, pieces INTEGER, price REAL)")
        database.executemany("INSERT INTO sales VALUES (?, ?, ?)", ROWS)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sales.db")
        make_database(path)

        def tables() -> list[str]:
            """The statements that have made the tables of the database."""
            return [row["sql"] for row in query("SELECT sql FROM sqlite_master WHERE type = 'table'")]

        def query(sql: str) -> list[dict[str, Any]]:
            """Read from the database: a row is a dict from column to value.

            Args:
                sql: A SELECT statement of SQLite.
            """
            # read-only, whatever the statement says
            database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
            database.row_factory = sqlite3.Row
            try:
                return [dict(row) for row in database.execute(sql)]
            finally:
                database.close()

        model = OpenAIChatCompletionClient(model=os.environ.get("OPENAI_MODEL", "gpt-4.1"))
        async with Scope():
            agent = CodeActAgent("analyst", model, DockerSessionCodeExecutor(), tools=[tables, query])
            for question in QUESTIONS:
                result = await agent.run(task=question)
                print(f"{question}\n  {result.messages[-1].to_text()}")
        await model.close()


if __name__ == "__main__":
    asyncio.run(main())
