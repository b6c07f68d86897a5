"""Pictures that code saves in its workspace, read for models."""

from __future__ import annotations

from support.executing import run, usually

from codeact_team.executors.base import SandboxedCodeExecutor


@usually("confined", "confined-session")
async def test_pictures_that_code_saves_are_read_once_and_no_others(executor: SandboxedCodeExecutor) -> None:
    await executor.start()
    await executor.workspace.new_files(0)
    code = "import os\nopen('a.png', 'wb').write(b'one')\nopen('b.txt', 'w').write('two')\nos.symlink('/etc/passwd', 'c.png')"
    await run(executor, code)
    await executor.workspace.add("d.png", b"not the code's")
    new = await executor.workspace.new_files(4)
    assert [picture.data for picture in new.pictures] == [b"one"]
    assert [(file.path, file.size) for file in new.files] == [("a.png", 3), ("b.txt", 3)]
    again = await executor.workspace.new_files(4)
    assert [*again.files, *again.pictures] == []
    changes = await executor.workspace.changed()
    assert {"a.png", "b.txt"} <= {file.path for file in changes.files}
