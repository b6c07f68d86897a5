"""AutoGen's user-defined functions: a module in the workspace that the code can import from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from string import Template
from typing import Any, TypeAlias

from autogen_core import CancellationToken
from autogen_core.code_executor import (
    CodeBlock,
    CodeExecutor,
    FunctionWithRequirements,
    FunctionWithRequirementsStr,
)

# private in AutoGen 0.7, and pinned with it: its own executors describe and write functions by these
from autogen_ext.code_executors._common import build_python_functions_file, to_stub

from codeact_team.errors import SettingError

Function: TypeAlias = FunctionWithRequirements[Any, ...] | FunctionWithRequirementsStr | Callable[..., Any]


PROMPT_TEMPLATE = (
    "The following functions are defined in the module `$module_name`; import them, as in "
    "`from $module_name import name`.\n\n$functions"
)


def format_for_prompt(functions: Sequence[Function], module: str, template: str) -> str:
    """Signatures and docstrings for a prompt: fills in ``$module_name`` and ``$functions``."""
    stubs = "\n\n".join(to_stub(function) for function in functions)
    return Template(template).substitute(module_name=module, functions=stubs)


async def install(
    executor: CodeExecutor, functions: Sequence[Function], module: str, cancellation_token: CancellationToken
) -> None:
    """Write the module that holds ``functions`` into the workspace, and see that it can be imported.

    Raises:
        SettingError: If a requirement cannot be installed, or the module does not load.
    """
    packages = sorted(
        {
            package
            for function in functions
            if isinstance(function, FunctionWithRequirements | FunctionWithRequirementsStr)
            for package in function.python_packages
        }
    )
    if packages:
        install = CodeBlock(code=f"python3 -m pip install --user {shlex.join(packages)}", language="sh")
        result = await executor.execute_code_blocks([install], cancellation_token)
        if result.exit_code != 0:
            raise SettingError(
                f"Pip install failed. The functions need {', '.join(packages)}: use an image that has them, or a "
                f"network that reaches an index. {result.output}"
            )
    source = f"# filename: {module}.py\n{build_python_functions_file(functions)}"
    result = await executor.execute_code_blocks(
        [CodeBlock(code=source, language="python")], cancellation_token
    )
    if result.exit_code != 0:
        raise SettingError(f"Functions failed to load: {result.output}")
