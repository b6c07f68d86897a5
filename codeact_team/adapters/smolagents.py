"""Code of smolagents' ``CodeAgent`` in the living interpreter of a sandbox. The agent's tools stay on the host."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from smolagents.local_python_executor import CodeOutput, PythonExecutor
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.utils import AgentExecutionError

from codeact_team.adapters import smolagents_bridge as bridge

if TYPE_CHECKING:
    from smolagents import Tool

    from codeact_team.core.execution import SessionResult
    from codeact_team.standalone.synchronous import SyncSandbox

_FINAL_ANSWER = "final_answer"
"""The tool that ends the work."""

_MODULE = "codeact_smolagents"
_IS_THERE = f"import sys; {_MODULE!r} in sys.modules"
_INSTALL = f"""
import sys as _sys, types as _types
_module = _sys.modules[{_MODULE!r}] = _types.ModuleType({_MODULE!r})
exec({{source!r}}, _module.__dict__)
_module.bind({{names!r}}, {{variables!r}}, globals())
del _sys, _types, _module
"""


class CodeactPythonExecutor(PythonExecutor):
    """An executor for ``CodeAgent(executor=...)``.

    Tools and managed agents are called on the host, with keys and a network that the sandbox has not. Texts, numbers, lists,
    dictionaries, bytes, times, arrays of numpy and pictures of Pillow pass between them, 1 MiB in a call at most.

    Args:
        sandbox: An open sandbox, which is not closed here. It needs the packages that the code is to import.
    """

    def __init__(self, sandbox: SyncSandbox) -> None:
        self._sandbox = sandbox
        self._tools: dict[str, Callable[..., Any]] = {}
        self._variables: dict[str, Any] = {}
        self._answers: list[Any] = []
        self._installed = False
        # the agent itself logs the errors of its code
        self._logger = AgentLogger(level=LogLevel.OFF)

    def send_tools(self, tools: Mapping[str, Tool]) -> None:
        """Offer these tools to the code, instead of those before."""
        self._tools = dict(tools)
        self._installed = False

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Set variables of the code.

        Raises:
            TypeError: If one has a type that does not pass.
        """
        bridge.dumps(dict(variables))
        self._variables |= variables
        self._installed = False

    def __call__(self, code_action: str) -> CodeOutput:
        """Run a block of code.

        Returns:
            Its output, in which is the value of its last expression, too; and the final answer, if it has given one.

        Raises:
            AgentExecutionError: If it failed, with its output and the traceback.
            SandboxError: If the sandbox is gone.
        """
        self._install()
        self._answers.clear()
        result = self._run(code_action)
        if self._answers:
            return CodeOutput(output=self._answers[0], logs=result.output, is_final_answer=True)
        if result.exit_code != 0:
            raise AgentExecutionError(result.output, self._logger)
        return CodeOutput(output=None, logs=result.output, is_final_answer=False)

    def _install(self) -> None:
        """Tell the interpreter the tools and variables, unless it knows them; a fresh one knows nothing."""
        if self._installed and self._run(_IS_THERE).output.strip() == "True":
            return
        variables = bridge.dumps(self._variables)
        source = inspect.getsource(bridge)
        result = self._run(_INSTALL.format(source=source, names=[*self._tools], variables=variables))
        if result.exit_code != 0:
            raise AgentExecutionError(result.output, self._logger)
        self._installed = True

    def _run(self, code: str) -> SessionResult:
        return self._sandbox.run_python(code, tools={"call": self._call})

    def _call(self, name: str, arguments: str) -> str | None:
        """Call a tool of the agent, for ``smolagents_bridge``. The final answer has no result."""
        positional, named = bridge.loads(arguments, is_hostile=True)
        value = self._tools[name](*positional, **named)
        if name == _FINAL_ANSWER:
            self._answers.append(value)
            return None
        return bridge.dumps(value)
