"""Which components a config may name: the allow-list, and how a provider is found.

A path is checked before anything is imported, and the object it leads to is checked again. So another path to the same class
does not evade a refusal, and a path through an allowed module does not reach an object that is defined elsewhere.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import pkgutil
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any, TypeGuard

from autogen_agentchat.base import ChatAgent, Team, TerminationCondition
from autogen_agentchat.messages import StructuredMessageFactory
from autogen_core import CacheStore, is_component_class
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import BaseTool, Workbench
from pydantic import AfterValidator, BaseModel, ValidationInfo
from pydantic_core import PydanticCustomError

from codeact_team.core.autogen_internals import WELL_KNOWN_PROVIDERS, ComponentClass
from codeact_team.core.shipped import install
from codeact_team.errors import ConfigError, NotAllowedError


def did_you_mean(name: str, others: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Half a sentence for the end of an error, with the most similar of ``others``; empty if none is similar."""
    near = difflib.get_close_matches(name, list(others), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


NAMESPACES_VARIABLE = "AUTOGEN_ALLOWED_PROVIDER_NAMESPACES"
"""AutoGen's environment variable with more namespaces, comma separated."""

DEFAULT_NAMESPACES = frozenset({"autogen_core", "autogen_agentchat", "autogen_ext", "codeact_team"})

_RUNS_SOURCE = "it runs the source code in its config as soon as it is loaded"
_RUNS_UNSANDBOXED = "it runs code on this machine without a sandbox"
_STARTS_PROGRAM = "it starts a program on this machine without a sandbox"

# By the place of definition, which every other path to the class leads to, and by the public path. A component that only
# holds others (PythonCodeExecutionTool, StaticWorkbench, MagenticOneGroupChat) is as safe as these, and they have
# providers of their own in the document.
_UNSAFE_CLASSES = {
    "autogen_core.tools._function_tool.FunctionTool": _RUNS_SOURCE,
    "autogen_core.tools.FunctionTool": _RUNS_SOURCE,
    "autogen_ext.code_executors.local.LocalCommandLineCodeExecutor": _RUNS_UNSANDBOXED,
    "autogen_ext.code_executors.jupyter._jupyter_code_executor.JupyterCodeExecutor": _RUNS_UNSANDBOXED,
    "autogen_ext.code_executors.jupyter.JupyterCodeExecutor": _RUNS_UNSANDBOXED,
    "autogen_ext.tools.mcp._stdio.StdioMcpToolAdapter": _STARTS_PROGRAM,
    "autogen_ext.tools.mcp.StdioMcpToolAdapter": _STARTS_PROGRAM,
}

UNSAFE_TYPES: Mapping[str, str] = {"StdioServerParams": _STARTS_PROGRAM}
"""Values of a ``type`` key that turn a harmless component (an MCP workbench over HTTP) into an unsafe one."""

_PROGRAMS = (
    "codeact_team.executors.packages.inside",
    "codeact_team.sandbox.confined.supervisor",
    "codeact_team.session.runner",
)
"""Programs that run in a process of their own. Imported here, they would run here, or import modules that happen to lie
around."""

_OF_AN_EXTRA = re.compile(r"(?P<name>[\w.-]+).*\bextra == ['\"](?P<extra>[\w-]+)['\"]")

ALLOW_UNSAFE_HINT = (
    "pass --allow-unsafe (in Python: Policy(allow_unsafe=True)) if you trust this config like a script"
)


# AutoGen's schemas only say "a component", and AutoGen checks the class only after it has made one.
KINDS_BY_FIELD: Mapping[str, tuple[type, ...]] = {
    "agent": (ChatAgent,),
    "client": (ChatCompletionClient,),
    "code_executor": (CodeExecutor,),
    "conditions": (TerminationCondition,),
    "executor": (CodeExecutor,),
    "memory": (Memory,),
    "model_client": (ChatCompletionClient,),
    "model_context": (ChatCompletionContext,),
    "participants": (ChatAgent, Team),
    "store": (CacheStore,),
    "structured_message_factory": (StructuredMessageFactory,),
    "team": (Team,),
    "termination_condition": (TerminationCondition,),
    "tools": (BaseTool,),
    "workbench": (Workbench,),
    "wrapped_agent": (ChatAgent,),
}
"""The classes whose components a field takes, in AutoGen's components and ours."""


@dataclass(frozen=True)
class Policy:
    """The components that a config may load.

    Attributes:
        namespaces: Packages or modules whose components are allowed, with everything below them.
        allow_unsafe: Whether components are allowed that run source code at load, or code on this machine without a sandbox.
    """

    namespaces: frozenset[str] = DEFAULT_NAMESPACES
    allow_unsafe: bool = False

    @classmethod
    def from_environment(
        cls,
        *,
        allow: Iterable[str] = (),
        allow_unsafe: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> Policy:
        """The default namespaces, those in ``AUTOGEN_ALLOWED_PROVIDER_NAMESPACES``, and ``allow``."""
        listed = (os.environ if environ is None else environ).get(NAMESPACES_VARIABLE, "").split(",")
        # AutoGen accepts a closing dot there
        extra = {name.strip().rstrip(".") for name in (*listed, *allow)} - {""}
        return cls(DEFAULT_NAMESPACES | extra, allow_unsafe)

    @property
    def options(self) -> Sequence[str]:
        """The options of the command that allow the same."""
        allowed = [
            option for name in sorted(self.namespaces - DEFAULT_NAMESPACES) for option in ("--allow", name)
        ]
        return [*allowed, *(["--allow-unsafe"] if self.allow_unsafe else [])]

    def allows(self, path: str) -> bool:
        """Whether ``path`` is one of the namespaces, or is below one."""
        return _lies_below(path, self.namespaces)


def _lies_below(path: str, namespaces: Iterable[str]) -> bool:
    return any(path == namespace or path.startswith(f"{namespace}.") for namespace in namespaces)


_active: ContextVar[Policy | None] = ContextVar("codeact_team_policy", default=None)


@contextmanager
def using(policy: Policy) -> Generator[None]:
    """Resolve paths by ``policy`` while components are constructed."""
    token = _active.set(policy)
    try:
        yield
    finally:
        _active.reset(token)


def active_policy() -> Policy:
    """The policy of the config that is being loaded, else the environment's."""
    return _active.get() or Policy.from_environment()


def check(path: str, policy: Policy) -> str:
    """Check a component's path by its text alone; return it with AutoGen's short names expanded.

    Raises:
        ConfigError: If this is no dotted path.
        NotAllowedError: If the path lies outside the allowed namespaces, or names an unsafe component.
    """
    path = WELL_KNOWN_PROVIDERS.get(path, path)
    _check_path(path, policy)
    _check_safe(path, _UNSAFE_CLASSES.get(path), policy)
    return path


def resolve(path: str, policy: Policy) -> ComponentClass:
    """Import the component class that a path names.

    Raises:
        ConfigError: If there is no such component, or its module cannot be imported here.
        NotAllowedError: If the path, or the class it leads to, is not allowed.
    """
    path = check(path, policy)
    found = _find(path)
    if not inspect.isclass(found) or not is_loadable(found):
        raise ConfigError(f"{path!r} is not a component that can be loaded from a config")
    _check_origin(path, found, policy)
    _check_safe(path, unsafe_reason(found), policy)
    return found


def is_loadable(found: type) -> TypeGuard[ComponentClass]:
    """Whether this class is a component that a config can describe."""
    return (
        is_component_class(found)
        and not inspect.isabstract(found)
        and all(hasattr(found, name) for name in found.required_class_vars)
    )


def unsafe_reason(component: ComponentClass) -> str | None:
    """Return the reason for which a component, or a base class of it, needs ``allow_unsafe``; ``None`` if it does not."""
    names = (f"{base.__module__}.{base.__qualname__}" for base in component.__mro__)
    return next((_UNSAFE_CLASSES[name] for name in names if name in _UNSAFE_CLASSES), None)


def schema_of(component: ComponentClass) -> type[BaseModel]:
    """The model of a component's config."""
    return component.component_config_schema  # pyright: ignore[reportGeneralTypeIssues]


def resolve_function(path: str, policy: Policy | None = None) -> Callable[..., Any]:
    """Import the function that ``module:function``, or a dotted path, names; by default as :func:`active_policy` allows.

    Raises:
        ConfigError: If there is no such function, or its module cannot be imported here.
        NotAllowedError: If the path, or the function it leads to, lies outside the allowed namespaces.
    """
    policy = policy or active_policy()
    dotted = _check_function_path(path, policy)
    found = _find(dotted)
    if not callable(found) or inspect.isclass(found):
        raise ConfigError(f"{path!r} is not a function")
    _check_origin(path, found, policy)
    return found


def _check_function_path(path: str, policy: Policy) -> str:
    dotted = path.replace(":", ".", 1)
    _check_path(dotted, policy)
    return dotted


def _check_in_config(path: str, info: ValidationInfo) -> str:
    # a component that dumps itself builds the same model without a context, and needs no check
    context: Any = info.context
    if isinstance(context, Policy):
        try:
            _check_function_path(path, context)
        except ConfigError as error:
            kind = "not_allowed" if isinstance(error, NotAllowedError) else "not_a_path"
            raise PydanticCustomError(kind, "{reason}", {"reason": error.message}) from error
    return path


FunctionPath = Annotated[str, AfterValidator(_check_in_config)]
"""A config field for :func:`resolve_function`: it is checked as text, before anything is imported."""


def _check_path(path: str, policy: Policy) -> None:
    names = path.split(".")
    # a dunder segment would run a package's __main__
    if len(names) < 2 or not all(
        name.isascii() and name.isidentifier() and not name.startswith("__") for name in names
    ):
        raise ConfigError(f"{path!r} is not a dotted path such as 'package.module.Name'")
    if not policy.allows(path):
        raise NotAllowedError(
            f"{path!r} lies outside the allowed namespaces ({', '.join(sorted(policy.namespaces))}), so it is not "
            f"imported; if you trust it, pass --allow {names[0]} or set {NAMESPACES_VARIABLE}={names[0]}"
        )
    if _lies_below(path, _PROGRAMS):
        raise NotAllowedError(
            f"{path!r} is part of a program that runs in a sandbox; it is not imported here"
        )


def _check_safe(path: str, reason: str | None, policy: Policy) -> None:
    if reason is not None and not policy.allow_unsafe:
        raise NotAllowedError(f"{path!r} is refused: {reason}; {ALLOW_UNSAFE_HINT}")


def _check_origin(path: str, found: object, policy: Policy) -> None:
    origin = str(getattr(found, "__module__", None))
    if not policy.allows(origin):
        raise NotAllowedError(
            f"{path!r} leads to {getattr(found, '__qualname__', found)!r} of module {origin!r}, outside the allowed "
            f"namespaces ({', '.join(sorted(policy.namespaces))})"
        )


def _find(path: str) -> object:
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
        # a package may import what it exports only now
        if hasattr(module, name):
            return getattr(module, name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise ConfigError(f"{path!r}: there is no module {missing!r}{_other_modules(missing)}") from error
        raise ConfigError(f"{path!r} needs {missing_package(missing)}") from error
    except ImportError as error:
        # another version may be installed
        command = _installing((error.name or "").partition(".")[0])
        hint = f"; a version that fits comes with `{command}`" if command else ""
        raise ConfigError(f"{path!r} cannot be imported: {error}{hint}") from error
    except Exception as error:  # whatever the module's own code raises
        raise ConfigError(f"{path!r} cannot be imported: {type(error).__name__}: {error}") from error
    near = did_you_mean(name, (other for other in dir(module) if not other.startswith("_")))
    raise ConfigError(f"{path!r}: module {module_name!r} has no {name!r}{near}")


def missing_package(module: str) -> str:
    """Half a sentence about the package that ``module`` belongs to, which is not installed, and how to install it."""
    package = module.partition(".")[0]
    command = _installing(package)
    how = f" by `{command}`" if command else ""
    return f"the package {package!r}, which is not installed; install it{how}"


def _installing(package: str) -> str | None:
    """The command that installs a package in a suitable version: by an extra of ours, or else of AutoGen's."""
    wanted = package.replace("_", "-").lower()
    for distribution in ("codeact-team", "autogen-ext"):
        for requirement in metadata.requires(distribution) or ():
            match = _OF_AN_EXTRA.match(requirement)
            # the module of "azure-core" is "azure"
            if match and f"{match['name'].lower()}-".startswith(f"{wanted}-") and match["extra"] != "dev":
                extra = match["extra"]
                return (
                    install(extra)
                    if distribution == "codeact-team"
                    else f"pip install '{distribution}[{extra}]'"
                )
    return None


def _other_modules(missing: str) -> str:
    parent_name, _, name = missing.rpartition(".")
    if not parent_name:
        if os.path.exists(f"{missing}.py") or os.path.isdir(missing):
            return "; it is in this directory, from which nothing is imported unless you set PYTHONPATH=."
        return f"; is it installed? If it is a file {missing}.py of yours, set PYTHONPATH to its directory"
    folders = getattr(importlib.import_module(parent_name), "__path__", ())
    return did_you_mean(name, (module.name for module in pkgutil.iter_modules(folders)))
