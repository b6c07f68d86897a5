"""AutoGen's user-defined functions: a module in the workspace that the code can import from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from string import Template
from typing import Any, TypeAlias

from autogen_core.code_executor import CodeBlock, FunctionWithRequirements, FunctionWithRequirementsStr

from codeact_team.autogen_internals import build_python_functions_file, to_stub
from codeact_team.executors.code_runner import Setup

Function: TypeAlias = FunctionWithRequirements[Any, ...] | FunctionWithRequirementsStr | Callable[..., Any]

PROMPT_TEMPLATE = (
    "The following functions are defined in the module `$module_name`; import them, as in "
    "`from $module_name import name`.\n\n$functions"
)


def format_for_prompt(functions: Sequence[Function], module: str, template: str) -> str:
    """Signatures and docstrings for a prompt: fills in ``$module_name`` and ``$functions``."""
    stubs = "\n\n".join(to_stub(function) for function in functions)
    return Template(template).substitute(module_name=module, functions=stubs)


def installation(functions: Sequence[Function], module: str) -> Iterator[Setup]:
    """What puts ``functions``, as ``module``, into a workspace."""
    if not functions:
        return
    packages = sorted(
        {
            package
            for function in functions
            if isinstance(function, FunctionWithRequirements | FunctionWithRequirementsStr)
            for package in function.python_packages
        }
    )
    if packages:
        command = f"python3 -m pip install --user {shlex.join(packages)}"
        failure = (
            f"Pip install failed. The functions need {', '.join(packages)}: use an image that has them, or a network "
            "that reaches an index. "
        )
        yield Setup(CodeBlock(code=command, language="sh"), failure)
    source = f"# filename: {module}.py\n{build_python_functions_file(functions)}"
    yield Setup(CodeBlock(code=source, language="python"), "Functions failed to load: ")
