"""The files for deployment: what they say is done, in containers with nothing but what they ask for, and code is confined there."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import ssl
import subprocess
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML as Reader
from support.checkout import CHECKOUT, copy_checkout

FILES = CHECKOUT / "examples/deployment"
YAML: Any = Reader(typ="safe")
VERSION, BASE, IMAGE = "3.13", "codeact-team-test-python", "codeact-team-test-deployed"

pytestmark = [
    pytest.mark.docker,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        subprocess.run([CHECKOUT / "tests/platforms/python", "have", VERSION], check=False).returncode != 0,
        reason=f"this machine has no Python {VERSION} to make an image of",
    ),
]


def docker(*arguments: str, given: bytes | None = None) -> str:
    """The output of a command of Docker's that succeeds."""
    done = subprocess.run(["docker", *arguments], input=given, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()[-2000:]
    return done.stdout.decode()


def in_container(image: str, *command: str, options: Sequence[str] = ()) -> str:
    return docker("run", "--rm", "--network", "host", *options, image, *command)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is to be committed."""
    return copy_checkout(tmp_path_factory.mktemp("copy"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """An image as python:3-slim is, which finds packages where this machine does."""
    place = tmp_path_factory.mktemp("base")
    subprocess.run([CHECKOUT / "tests/platforms/python", "image", VERSION, place / "image.tar"], check=True)
    docker("import", str(place / "image.tar"), f"{BASE}-bare")
    (place / "image.tar").unlink()
    settings = subprocess.run(
        ["pip", "config", "list"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    certificates = os.environ.get("PIP_CERT") or ssl.get_default_verify_paths().cafile
    assert certificates is not None
    shutil.copy(certificates, place / "ca.crt")
    index = next((line.split("=", 1)[1].strip("'") for line in settings if ".index-url" in line), None)
    (place / "Dockerfile").write_text(
        f"FROM {BASE}-bare\nCOPY ca.crt /etc/ssl/certs/ca-certificates.crt\nCOPY pip /usr/local/bin/\n"
        "ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_ROOT_USER_ACTION=ignore\n"
        + (f"ENV PIP_INDEX_URL={index}\n" if index else "")
    )
    # the machine's own names the interpreter where it was built
    (place / "pip").write_text('#!/bin/sh\nexec python3 -m pip "$@"\n')
    (place / "pip").chmod(0o755)
    docker("build", "-q", "-t", BASE, str(place))
    yield BASE
    docker("rmi", "-f", BASE, f"{BASE}-bare", IMAGE)


@pytest.fixture(scope="module")
def image(base: str, checkout: Path) -> str:
    """The image of the Dockerfile."""
    file = checkout / FILES.relative_to(CHECKOUT) / "Dockerfile"
    docker(
        "build",
        "-q",
        "--network",
        "host",
        "--build-arg",
        f"PYTHON={base}",
        "-t",
        IMAGE,
        "-f",
        str(file),
        str(checkout),
    )
    return IMAGE


def options_of(pod: dict[str, Any], node: Path) -> list[str]:
    """The options by which an engine runs the only container of a pod, with its volumes in the directory ``node``."""
    [container] = pod["containers"]
    given = container["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert not given["allowPrivilegeEscalation"]
    options = [f"--user={given['runAsUser']}:{given['runAsGroup']}", "--security-opt=no-new-privileges"]
    options += [f"--cap-drop={name}" for name in given["capabilities"]["drop"]]
    options += ["--read-only"] if given["readOnlyRootFilesystem"] else []
    options += [f"--env={each['name']}={each['value']}" for each in container["env"]]
    for each in container["volumeMounts"]:
        # as the kubelet makes it
        (volume := node / each["name"]).mkdir()
        volume.chmod(0o777)
        options.append(f"--volume={volume}:{each['mountPath']}")
    return options


def assert_confined(said: str) -> None:
    """Assert that a command says nothing of what is not enforced, neither as a warning nor in its table."""
    assert "not enforced" not in said, said
    assert "in namespaces" not in said, said
    assert "✗ confinement" not in said, said


def test_the_image_runs_code_confined_with_nothing_asked_of_the_engine(image: str) -> None:
    for options in ([], ["--user=0"], ["--cap-drop=ALL", "--security-opt=no-new-privileges"]):
        for command in (["doctor", "quickstart"], ["run", "quickstart"]):
            said = in_container(image, *command, options=options)
            assert_confined(said)


def test_the_pod_runs_as_a_user_without_a_name_by_the_restricted_standard(image: str, tmp_path: Path) -> None:
    pod = YAML.load(FILES / "pod.yaml")["spec"]
    said = in_container(image, *pod["containers"][0]["args"], options=options_of(pod, tmp_path))
    assert_confined(said)


def test_the_jobs_steps_succeed_in_its_container(base: str, checkout: Path) -> None:
    job = YAML.load(FILES / "workflow.yaml")["jobs"]["agents"]
    steps = [step["run"] for step in job["steps"] if "run" in step]
    in_container(
        base,
        "sh",
        "-ec",
        "cp -r /given /checkout; cd /checkout\n" + "\n".join(steps),
        options=[f"--volume={checkout}:/given:ro"],
    )


def test_the_dev_container_is_made_and_opened_as_it_says(image: str) -> None:
    said = json.loads((FILES / "devcontainer.json").read_text())
    assert (FILES / said["build"]["dockerfile"]).exists()
    assert (FILES / said["build"]["context"]).resolve() == CHECKOUT
    in_container(
        image, "-ec", said["postCreateCommand"], options=[f"--user={said['remoteUser']}", "--entrypoint=sh"]
    )


def test_the_image_runs_code_in_containers_of_an_engine_whose_socket_it_is_given(image: str) -> None:
    [command] = [line for line in (FILES / "Dockerfile").read_text().splitlines() if "--group-add" in line]
    options, _, doctor = command.removeprefix("#").partition(" codeact-team ")
    in_docker = [
        "config.code_executor.provider=codeact_team.DockerSessionCodeExecutor",
        "config.code_executor.config={}",
    ]
    overrides = shlex.join([part for each in in_docker for part in ("-s", each)])
    for arguments, expected in (
        (doctor, "✓ engine "),
        (f"run quickstart-codeact {overrides}", "The tarts brought in the most"),
    ):
        ran = subprocess.run(
            ["sh", "-c", f"{options} {image} {arguments}"], capture_output=True, text=True, check=False
        )
        assert expected in ran.stdout, ran.stdout + ran.stderr
