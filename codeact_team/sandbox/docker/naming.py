"""The name of a container's user, in a file that stands in for the image's ``/etc/passwd``.

No image names the user of a sandbox, and the root of a container is read-only. So the engine has to see a file of this machine.
Podman names the user by itself.
"""

from __future__ import annotations

from pathlib import Path

from codeact_team.sandbox.docker.config import DockerSandboxConfig
from codeact_team.sandbox.docker.description import EngineDescription
from codeact_team.sandbox.temporary import TemporaryDirectory
from codeact_team.sandbox.users import USER_NAME, is_root

PLACE = "/etc/passwd"
HOME = "/tmp"
"""A directory that is writable for any image and user."""
_NAME = "passwd"
_unseen = set[str]()
"""The addresses of engines that do not see the temporary files of this machine."""


class NamedUser:
    """A file that names a user, as long as its container lives.

    Attributes:
        file: Its path.
    """

    def __init__(self, user: str) -> None:
        self._directory = TemporaryDirectory()
        self.file: Path = Path(self._directory.path, _NAME)
        uid, _, gid = user.partition(":")
        users = (
            "root:x:0:0:root:/root:/bin/sh",
            "nobody:x:65534:65534:nobody:/nonexistent:/bin/sh",
            f"{USER_NAME}:x:{uid}:{gid}::{HOME}:/bin/sh",
        )
        self.file.write_text("".join(f"{line}\n" for line in users))
        # the engine may run as another user, and so does the code
        self.file.chmod(0o644)

    def remove(self) -> None:
        """Remove the file. Blocks. Raises an ``OSError``."""
        self._directory.remove()


def named_user(
    config: DockerSandboxConfig, engine: EngineDescription, url: str, user: str
) -> NamedUser | None:
    """Name the user of the code; ``None`` where the image, the config or the engine does, or the engine sees no file of this machine."""
    is_chosen = config.user is not None or any(
        volume["bind"] in (PLACE, "/etc") for volume in config.extra_volumes.values()
    )
    # the engine reads the file again whenever somebody looks into a container that has outlived it
    is_kept = not (config.auto_remove and config.stop_container)
    # with a root that can be written, programs add users of their own
    if is_chosen or is_kept or is_root(user) or engine.is_podman or not config.read_only:
        return None
    return NamedUser(user) if url.startswith("unix://") and url not in _unseen else None


def forget(url: str) -> None:
    """Name no more users for this engine, which does not see the file."""
    _unseen.add(url)
