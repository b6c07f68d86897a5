"""In place of pip: whether what a page installs is there already, with the extras that it names."""

from __future__ import annotations

import re
import sys
from importlib.metadata import metadata

from packaging.requirements import InvalidRequirement, Requirement

wanted = [each for each in sys.argv[1:] if not each.startswith("-")]
assert wanted[0] == "install", f"pip {wanted} is not known here"
for each in wanted[1:]:
    try:
        requirement = Requirement(re.sub(r"^\.(?=\[|$)", "codeact-team", each))
    except InvalidRequirement:
        sys.exit(f"{each!r} is no package")
    found = metadata(requirement.name)
    if missing := requirement.extras - set(found.get_all("Provides-Extra") or ()):
        sys.exit(f"{requirement.name} has no extra {', '.join(missing)}")
