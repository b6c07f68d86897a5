"""The example of a network by rules runs in both sandboxes, against servers of this machine."""

from __future__ import annotations

import ensurepip
import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from support.egress import Company, Upstream, allowed, name_loopback, serving
from support.executing import why_not_confined
from support.wheels import make_wheel, use_index

EXAMPLE = Path(__file__).parents[1] / "examples" / "network.py"
SECRET = "ghp_a-token-that-no-code-may-see"
TEMPLATES = Path("/usr/share/git-core/templates")
GIT = ["/usr/bin/git", "/usr/lib/git-core/git-remote-https"]


def fetch() -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location("example_of_a_network", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.fetch


def answer(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\nContent-Type: text/html\r\n\r\n%s" % (
        status.encode(),
        len(body),
        body,
    )


def files_of(directory: Path) -> Callable[[bytes], bytes]:
    """Answers requests by the files of a directory."""

    def read(request: bytes) -> bytes:
        path = unquote(request.split(b" ")[1].decode().partition("?")[0])
        file = directory / path.strip("/")
        return answer(file.read_bytes()) if file.is_file() else answer(b"", "404 Not Found")

    return read


def index_of(wheels: Path) -> Callable[[bytes], bytes]:
    links = "".join(f'<a href="/files/{wheel.name}">{wheel.name}</a>' for wheel in wheels.iterdir())

    def read(request: bytes) -> bytes:
        path = request.split(b" ")[1].decode()
        if path.startswith("/simple/"):
            return answer(links.encode())
        return answer((wheels / path.rpartition("/")[2]).read_bytes())

    return read


def of_api(request: bytes) -> bytes:
    if f"Authorization: Bearer {SECRET}".lower().encode() not in request.lower():
        return answer(b"{}", "401 Unauthorized")
    return answer(json.dumps({"full_name": "acme/shapes", "echo": SECRET}).encode())


def repository(directory: Path) -> Path:
    """A bare repository that a plain web server can serve."""
    work = directory / "work"
    work.mkdir(parents=True)
    (work / "shapes.txt").write_text("circle\n")
    (work / "README").write_text("Shapes.\n")
    me = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*me, "commit", "-qm", "Begin"]):
        subprocess.run(["git", "-C", str(work), *command], check=True)
    bare = directory / "served" / "shapes.git"
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(bare)], check=True)
    subprocess.run(["git", "-C", str(bare), "update-server-info"], check=True)
    return bare.parent


def image_with_git(directory: Path) -> str:
    """Build an image that has the git of this machine, with its libraries."""
    found = [*GIT]
    for program in GIT:
        told = subprocess.run(["ldd", program], check=True, stdout=subprocess.PIPE, text=True).stdout
        found += re.findall(r"=> (/\S+)", told)
    context = directory / "image"
    for path in dict.fromkeys(found):
        (target := context / "root" / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        if not re.search(r"/(?:libc|libpthread|ld-linux[\w-]*)\.so", path):
            shutil.copyfile(path, target)
            target.chmod(0o755)
    dockerfile = "FROM python:3-slim\nCOPY root/usr/bin /usr/bin\nCOPY root/usr/lib /usr/lib\nCOPY libs /usr/lib/x-of-a-test\n"
    shutil.copytree(TEMPLATES, context / "templates")
    dockerfile += f"COPY templates {TEMPLATES}\n"
    (context / "libs").mkdir()
    if (lib := context / "root" / "lib").exists():
        for file in lib.rglob("*.so*"):
            shutil.copyfile(file, context / "libs" / file.name)
    dockerfile += "ENV LD_LIBRARY_PATH=/usr/lib/x-of-a-test\n"
    (context / "Dockerfile").write_text(dockerfile)
    built = subprocess.run(
        ["docker", "build", "-q", str(context)], check=True, stdout=subprocess.PIPE, text=True
    )
    return built.stdout.strip()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["confined", pytest.param("docker", marks=pytest.mark.docker)])
async def test_code_clones_installs_and_calls_an_api_with_a_key_that_it_never_has(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "confined" and (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    name_loopback(monkeypatch)
    monkeypatch.setenv("GITHUB_TOKEN", SECRET)
    # of the host, which gives the sandbox pip
    [pip] = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    shutil.copy(pip, use_index(tmp_path, monkeypatch))
    (wheels := tmp_path / "wheels").mkdir()
    make_wheel(wheels, "shapes")
    company = Company(tmp_path)
    answers = {
        "code.test": files_of(repository(tmp_path / "git")),
        "index.test": index_of(wheels),
        "api.test": of_api,
    }
    servers = {host: Upstream(each) for host, each in answers.items()}
    more = {"image": image_with_git(tmp_path), "pull": "never"} if kind == "docker" else {}
    async with AsyncExitStack() as stack:
        for host, server in servers.items():
            await stack.enter_async_context(serving(server, company.server_of(host)))
        url = {host: f"https://{host}:{server.port}" for host, server in servers.items()}
        output = await fetch()(
            kind,
            repository=f"{url['code.test']}/shapes.git",
            index=f"{url['index.test']}/simple",
            api=f"{url['api.test']}/repos/shapes",
            package="shapes",
            rules=[
                allowed("code.test", servers["code.test"].port),
                allowed("index.test", servers["index.test"].port),
                allowed("api.test", servers["api.test"].port, methods=["GET"], paths=["/repos/*"]),
            ],
            extra_ca=[company.file],
            **more,
        )
    assert output.splitlines() == [
        "cloned README, shapes.txt",
        "installed shapes.py",
        "asked acme/shapes",
        "refused 403",
        "a key: None",
        f"[api.test:{servers['api.test'].port} is denied: no rule allows this request to api.test]",
    ]
    assert [request.split(b" ")[0] for request in servers["api.test"].heads] == [b"GET"]
