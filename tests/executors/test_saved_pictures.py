"""Pictures that code saves in its workspace, read for models."""

from __future__ import annotations

from support.executing import run

from codeact_team.executors.base import SandboxedCodeExecutor


async def test_pictures_that_code_saves_are_read_once_and_no_others(executor: SandboxedCodeExecutor) -> None:
    await executor.start()
    await executor.workspace.new_pictures(0)
    code = "import os\nopen('a.png', 'wb').write(b'one')\nopen('b.txt', 'w').write('two')\nos.symlink('/etc/passwd', 'c.png')"
    await run(executor, code)
    await executor.workspace.add("d.png", b"not the code's")
    assert [picture.data for picture in await executor.workspace.new_pictures(4)] == [b"one"]
    assert await executor.workspace.new_pictures(4) == []
    changes = await executor.workspace.changed()
    assert {"a.png", "b.txt"} <= {file.path for file in changes.files}
