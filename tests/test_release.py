"""`.ci/release`, in a clone: what it refuses, its dry run, and a release to an index, a remote and a key of the test's own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.command_line import with_index

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

VERSION = "98.7.6"
SIGNER = "releaser@example.org"
UNRELEASED = "## [Unreleased]\n"


class Clone:
    """What is to be committed here, as the commit of a release in a repository with a remote, for somebody with a key."""

    def __init__(self, directory: Path) -> None:
        self.checkout = directory / "checkout"
        self._home = directory / "home"
        self._variables = {
            "HOME": str(self._home),
            "GNUPGHOME": str(directory / "keys"),
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        }
        for made in (self.checkout, self._home, directory / "keys"):
            made.mkdir(mode=0o700)
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (copy := self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, copy)
        self.edit("pyproject.toml", r'^version = ".*"$', f'version = "{VERSION}"')
        self.edit("CHANGELOG.md", re.escape(UNRELEASED), f"{UNRELEASED}\n## [{VERSION}] - 2026-11-29\n")
        self.run("git", "init", "-q", "--bare", str(directory / "remote"))
        self.run("git", "init", "-q", "-b", "main")
        for setting in ("user.name=Releaser", "user.email=releaser@example.org", f"user.signingKey={SIGNER}"):
            self.run("git", "config", *setting.split("="))
        self.run("git", "remote", "add", "origin", str(directory / "remote"))
        self.commit()

    def edit(self, file: str, pattern: str, text: str) -> None:
        path = self.checkout / file
        changed, count = re.subn(pattern, text, path.read_text(), count=1, flags=re.MULTILINE)
        assert count == 1, f"{pattern} is not in {file}"
        path.write_text(changed)

    def commit(self) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "-q", "-m", "Release")

    def run(self, *command: str, code: int = 0, **variables: str) -> str:
        ran = subprocess.run(
            command,
            cwd=self.checkout,
            env=with_index(**self._variables, **variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert ran.returncode == code, ran.stdout
        return ran.stdout

    def make_key(self) -> None:
        self.run("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", SIGNER)

    def tags_of_the_remote(self) -> str:
        return self.run("git", "ls-remote", "--tags", "origin")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


@contextmanager
def index() -> Generator[tuple[str, list[bytes]]]:
    """An index to upload to: its address, and the bodies of what has come."""
    uploads = list[bytes]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                body = b"".join(iter(self._chunk, b""))
            else:
                body = self.rfile.read(int(self.headers["Content-Length"]))
            uploads.append(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _chunk(self) -> bytes:
            chunk = self.rfile.read(int(self.rfile.readline(), 16))
            self.rfile.readline()
            return chunk

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/upload/", uploads
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def edit_readme(clone: Clone) -> None:
    clone.edit("README.md", "^# ", "# My ")


def edit_version(clone: Clone) -> None:
    clone.edit("pyproject.toml", VERSION, "98.7.7")
    clone.commit()


def add_entry(clone: Clone) -> None:
    clone.edit("CHANGELOG.md", re.escape(UNRELEASED), f"{UNRELEASED}\n- Something else.\n")
    clone.commit()


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (edit_readme, "the working tree has changes"),
        (edit_version, "CHANGELOG.md has no section `## [98.7.7] - DATE`"),
        (add_entry, f"has entries under [Unreleased]: move them to [{VERSION}]"),
    ],
    ids=["changes", "version", "unreleased"],
)
def test_what_is_no_release_is_refused_before_anything_is_built(
    clone: Clone, mistake: Callable[[Clone], None], said: str
) -> None:
    mistake(clone)
    assert said in clone.run(".ci/release", code=1)
    assert not (clone.checkout / "build").exists()


def test_a_dry_run_builds_and_tries_and_says_what_else_it_would_do(clone: Clone) -> None:
    said = clone.run(".ci/release", "--dry-run")
    assert steps_of(said) == ["agree", "build", "try", "sign", "upload"]
    would = [line.split()[1:3] for line in said.splitlines() if line.startswith("would: ")]
    assert would == [
        ["gpg", "--batch"],
        ["gpg", "--batch"],
        ["git", "tag"],
        ["uv", "publish"],
        ["git", "push"],
    ]
    made = sorted(path.suffix for path in (clone.checkout / "build/release").glob("codeact_team-*"))
    assert made == [".gz", ".whl"]
    assert clone.run("git", "tag") == ""


def test_a_release_is_signed_uploaded_and_tagged(clone: Clone) -> None:
    clone.make_key()
    with index() as (address, uploads):
        clone.run(".ci/release", UV_PUBLISH_URL=address, UV_PUBLISH_TOKEN="token-of-a-test")
    made = sorted((clone.checkout / "build/release").glob("codeact_team-*[lz]"))
    assert [VERSION in file.name for file in made] == [True, True]
    for file in made:
        assert any(file.read_bytes() in upload for upload in uploads), file
        clone.run("gpg", "--verify", f"{file}.asc", str(file))
    clone.run("git", "verify-tag", f"v{VERSION}")
    assert f"refs/tags/v{VERSION}\n" in clone.tags_of_the_remote()
    assert f"{VERSION} is released" in clone.run(".ci/release", code=1)


def test_nobody_sees_the_tag_of_what_was_not_uploaded(clone: Clone) -> None:
    clone.make_key()
    nowhere = "http://127.0.0.1:9/upload/"
    clone.run(".ci/release", code=2, UV_PUBLISH_URL=nowhere, UV_PUBLISH_TOKEN="token-of-a-test")
    assert clone.tags_of_the_remote() == ""


def steps_of(said: str) -> Sequence[str]:
    return re.findall("^== (.*)$", said, re.MULTILINE)
