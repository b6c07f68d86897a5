"""Code that clones a repository, installs a package and calls an API with a key that it never has.

    GITHUB_TOKEN=… python examples/network.py [docker IMAGE]

Needs no model. It reaches GitHub and PyPI, and nothing else. Confined code uses the git of this machine; for Docker, name an image
that has git.
"""

import asyncio
import sys
from typing import Any
from urllib.parse import urlsplit

from codeact_team import Credential, EgressRule, open_sandbox

REPOSITORY = "https://github.com/benjaminp/six"
INDEX = "https://pypi.org/simple"
API = "https://api.github.com/repos/benjaminp/six"
PACKAGE = "six"
RULES = [
    EgressRule(host="github.com", decision="allow"),
    EgressRule(host="pypi.org", decision="allow"),
    EgressRule(host="files.pythonhosted.org", decision="allow"),
    # requests there are read
    EgressRule(host="api.github.com", methods=["GET"], paths=["/repos/*"], decision="allow"),
]

CODE = """
import json, os, subprocess
from urllib.error import HTTPError
from urllib.request import Request, urlopen

subprocess.run(["git", "clone", "--quiet", os.environ["REPOSITORY"], "cloned"], check=True)
print("cloned", ", ".join(sorted(set(os.listdir("cloned")) - {".git"})))
install = ["python3", "-m", "pip", "install", "--quiet", "--no-warn-conflicts", "--disable-pip-version-check", "--target", "installed"]
subprocess.run([*install, os.environ["PACKAGE"]], check=True)
print("installed", ", ".join(sorted(name for name in os.listdir("installed") if name.endswith(".py"))))
api = os.environ["API"]
with urlopen(api) as answer:
    print("asked", json.load(answer)["full_name"])
try:
    urlopen(Request(api, method="DELETE"))
except HTTPError as error:
    print("refused", error.code)
print("a key:", os.environ.get("GITHUB_TOKEN"))
"""


async def fetch(
    kind: str,
    *,
    repository: str = REPOSITORY,
    index: str = INDEX,
    api: str = API,
    package: str = PACKAGE,
    rules: list[EgressRule] = RULES,
    **settings: Any,
) -> str:
    """Do it in a sandbox of a kind, and return what the code has printed."""
    token = Credential(name="GITHUB_TOKEN", hosts=[urlsplit(api).hostname or ""])
    places = {"REPOSITORY": repository, "PIP_INDEX_URL": index, "API": api, "PACKAGE": package}
    async with open_sandbox(
        "docker" if kind == "docker" else "confined",
        packages=["pip"],
        egress=[*rules],
        credentials=[token],
        environment=places,
        **settings,
    ) as sandbox:
        result = await sandbox.run_python(CODE)
    return result.output


if __name__ == "__main__":
    settings: dict[str, Any] = {"image": sys.argv[2]} if len(sys.argv) > 2 else {}
    print(asyncio.run(fetch(sys.argv[1] if len(sys.argv) > 1 else "confined", **settings)))
