"""Layers of packages as volumes, for an engine that does not see this machine's files."""

from __future__ import annotations

import stat
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

from docker.errors import APIError, NotFound
from docker.types import Mount

from codeact_team.core.trees import opened_own, walk
from codeact_team.sandbox.archives import END, file_member, head
from codeact_team.sandbox.docker.container import CONFLICT, labels
from codeact_team.sandbox.docker.creation import PACKAGES, noted_start
from codeact_team.sandbox.docker.engine import Client, translated

_LABEL = "codeact-team.packages"
_COMPLETE = ".complete"
"""The last file that is put into a volume."""

_filling = threading.Lock()


def filled_volume(client: Client, url: str, image: str, layer: Path) -> str:
    """The name of the volume with what is in a layer; filled by a stream, unless it is there already. Blocks.

    Raises:
        EngineError: If the engine refuses.
    """
    name = f"codeact-team-packages-{layer.name}"
    with _filling, noted_start(url) as label, translated(url):
        client.create_volume(name, labels={_LABEL: layer.name})
        mounts = [Mount(PACKAGES, name, type="volume", no_copy=True)]
        host_config = client.create_host_config(mounts=mounts, network_mode="none")
        # never started: files can be put into a volume only where something has it
        marks = {**labels(), **label}
        container = client.create_container(image, ["true"], labels=marks, host_config=host_config)["Id"]
        try:
            if not _is_complete(client, container):
                client.put_archive(container, PACKAGES, _archive(layer))
        finally:
            client.remove_container(container, force=True)
    return name


def remove_unused_volumes(client: Client, url: str) -> int:
    """Remove the volumes that no container has, and tell how many. Blocks.

    Raises:
        EngineError: If the engine refuses.
    """
    removed = 0
    with translated(url):
        for volume in client.volumes(filters={"label": _LABEL})["Volumes"] or ():
            try:
                client.remove_volume(volume["Name"])
                removed += 1
            except APIError as error:
                if error.status_code != CONFLICT:
                    raise
    return removed


def _is_complete(client: Client, container: str) -> bool:
    try:
        pieces, _ = client.get_archive(container, f"{PACKAGES}/{_COMPLETE}")
    except NotFound:
        return False
    # read to the end, so that the connection can be used again
    return bool(b"".join(pieces))


def _archive(layer: Path) -> Iterator[bytes]:
    """A tar archive of a layer, as it is written."""
    with opened_own(layer) as top:
        for directory in walk(top):
            for name, status in sorted(directory.entries()):
                member = tarfile.TarInfo("/".join([*directory.names, name]))
                if stat.S_ISDIR(status.st_mode):
                    directory.enter(name, status)
                    member.type, member.mode = tarfile.DIRTYPE, 0o755
                    yield head(member)
                    continue
                with open(layer.joinpath(*directory.names, name), "rb") as file:
                    member.size, member.mode = status.st_size, status.st_mode & 0o777
                    member.mtime = int(status.st_mtime)
                    yield from file_member(member, file)
    yield head(tarfile.TarInfo(_COMPLETE))
    yield END
