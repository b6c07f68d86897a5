from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from codeact_team.core import providers
from codeact_team.core.providers import FunctionPath, Policy
from codeact_team.errors import ConfigError, NotAllowedError

DEFAULT = Policy()
UNSAFE = Policy(allow_unsafe=True)

COMPONENT = """
from autogen_core import Component, ComponentBase
from pydantic import BaseModel

class Config(BaseModel):
    size: int = 1

class Part(ComponentBase[BaseModel], Component[Config]):
    component_type = "part"
    component_config_schema = Config
"""


def write_module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    (folder / f"{name}.py").write_text(source)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize(
    "path", ["autogen_core.tools.X", "autogen_agentchat.X", "autogen_ext.a.b.c", "codeact_team.X"]
)
def test_paths_below_the_default_namespaces_are_allowed(path: str) -> None:
    assert providers.check(path, DEFAULT) == path


@pytest.mark.parametrize(
    "path",
    [
        "antigravity.X",
        "os.system",
        "autogen_ext_evil.X",
        "autogen_extra.X",
        "xautogen_ext.X",
        "codeact_team2.X",
        "AUTOGEN_EXT.X",
        "evil.autogen_ext.X",
    ],
)
def test_paths_outside_the_namespaces_are_not_allowed(path: str) -> None:
    with pytest.raises(NotAllowedError, match=r"--allow \w+ or set AUTOGEN_ALLOWED_PROVIDER_NAMESPACES="):
        providers.check(path, DEFAULT)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "x",
        "autogen_ext",
        ".autogen_ext.X",
        "autogen_ext..X",
        "autogen_ext.X.",
        "autogen_ext.X Y",
        "autogen_ext.X;import os",
        "autogen_ext/X",
        "codeact_team.__main__.X",
        "autogen_core.__loader__",
        "\N{FULLWIDTH LATIN SMALL LETTER A}utogen_ext.X",
    ],
)
def test_what_is_no_dotted_path_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="not a dotted path"):
        providers.check(path, DEFAULT)


@given(st.text() | st.text("abx_.:0 "))
def test_any_text_is_an_allowed_path_or_a_config_error(path: str) -> None:
    try:
        assert providers.check(path, DEFAULT).startswith(tuple(f"{name}." for name in DEFAULT.namespaces))
    except ConfigError:
        pass


def test_autogens_short_names_are_understood() -> None:
    assert providers.resolve("OpenAIChatCompletionClient", DEFAULT) is OpenAIChatCompletionClient


def test_more_namespaces_come_from_the_argument_and_from_autogens_variable() -> None:
    environ = {"AUTOGEN_ALLOWED_PROVIDER_NAMESPACES": " mine.parts. ,, other"}
    policy = Policy.from_environment(allow=["third"], environ=environ)
    assert policy.namespaces == providers.DEFAULT_NAMESPACES | {"mine.parts", "other", "third"}
    assert not policy.allow_unsafe
    assert policy.allows("mine.parts.X")
    assert not policy.allows("mine.X")


def test_without_a_config_being_loaded_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGEN_ALLOWED_PROVIDER_NAMESPACES", "mine")
    assert providers.active_policy().allows("mine.X")
    with providers.using(DEFAULT):
        assert not providers.active_policy().allows("mine.X")
    assert providers.active_policy().allows("mine.X")


@pytest.mark.parametrize(
    "path",
    [
        "autogen_core.tools.FunctionTool",
        "autogen_core.tools._function_tool.FunctionTool",
        # the same class, through modules that happen to import it
        "autogen_agentchat.agents._assistant_agent.FunctionTool",
        "autogen_ext.code_executors.local.LocalCommandLineCodeExecutor",
        # known by its path alone: what it needs is not installed here
        "autogen_ext.code_executors.jupyter.JupyterCodeExecutor",
        "autogen_ext.tools.mcp.StdioMcpToolAdapter",
    ],
)
def test_components_that_run_code_unsandboxed_are_refused_unless_asked_for(path: str) -> None:
    with pytest.raises(NotAllowedError, match="allow-unsafe"):
        providers.resolve(path, DEFAULT)
    assert providers.check(path, UNSAFE) == path


def test_an_unsafe_component_loads_where_asked_for() -> None:
    assert providers.resolve("autogen_core.tools.FunctionTool", UNSAFE) is FunctionTool


def test_what_inherits_an_unsafe_component_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor as Hidden\n"
        "class Innocent(Hidden): pass\n"
    )
    write_module(tmp_path, monkeypatch, "innocent_parts", source)
    mine = DEFAULT.namespaces | {"innocent_parts"}
    for name in ("Innocent", "Hidden"):
        with pytest.raises(NotAllowedError, match="without a sandbox"):
            providers.resolve(f"innocent_parts.{name}", Policy(mine))
        assert providers.resolve(f"innocent_parts.{name}", Policy(mine, allow_unsafe=True))


@pytest.mark.parametrize("path", sorted(providers._UNSAFE_CLASSES))  # pyright: ignore[reportPrivateUsage]
def test_the_refused_classes_are_where_autogen_defines_or_exports_them(path: str) -> None:
    module_name, _, name = path.rpartition(".")
    package = importlib.util.find_spec(module_name.rpartition(".")[0])
    assert package is not None
    assert package.submodule_search_locations
    # by source, since importing needs what is not installed
    place = Path(package.submodule_search_locations[0], module_name.rpartition(".")[2])
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    names = {
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef | ast.alias)
    }
    assert name in names


def test_a_known_component_resolves() -> None:
    assert providers.resolve("autogen_agentchat.agents.AssistantAgent", DEFAULT) is AssistantAgent
    assert (
        providers.resolve("autogen_agentchat.agents._assistant_agent.AssistantAgent", DEFAULT)
        is AssistantAgent
    )


def test_no_module_that_a_config_may_name_imports_by_the_bare_name_of_a_file_beside_it() -> None:
    package = Path(providers.__file__).parent
    for file in package.rglob("*.py"):
        module = ".".join(file.relative_to(package.parent).with_suffix("").parts)
        try:
            providers.check(f"{module.removesuffix('.__init__')}.X", DEFAULT)
        except ConfigError:
            continue
        beside = {other.stem for other in file.parent.glob("*.py")} - sys.stdlib_module_names
        assert beside.isdisjoint(re.findall(r"^\s*(?:from|import) (\w+)", file.read_text(), re.M)), module


@pytest.mark.parametrize(
    "path",
    [
        "codeact_team.sandbox.confined.supervisor.programs.X",
        "codeact_team.sandbox.confined.supervisor.X",
        "codeact_team.session.runner.bootstrap.X",
        "codeact_team.executors.packages.inside.compile.X",
    ],
)
def test_what_runs_in_a_sandbox_is_not_imported_here(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as a module, a program would run here, or import what lies about under the names of its other files
    write_module(tmp_path, monkeypatch, "processes", "raise SystemExit('imported')")
    for policy in (DEFAULT, UNSAFE, Policy(DEFAULT.namespaces | {path.rpartition(".")[0]})):
        with pytest.raises(NotAllowedError, match="part of a program that runs in a sandbox"):
            providers.resolve(path, policy)
        with pytest.raises(NotAllowedError, match="part of a program that runs in a sandbox"):
            providers.resolve_function(path, policy)


@pytest.mark.parametrize(
    "path",
    [
        "autogen_agentchat.agents.ApprovalRequest",
        "autogen_agentchat.agents.BaseChatAgent",
        "autogen_agentchat.EVENT_LOGGER_NAME",
        "autogen_core.models.ChatCompletionClient",
        "codeact_team.core.providers.check",
        # modules that autogen imports, and what they hold
        "autogen_core._component_config.importlib",
        "autogen_core._component_config.Any",
    ],
)
def test_what_is_no_component_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="not a component"):
        providers.resolve(path, DEFAULT)


def test_a_path_does_not_lead_through_an_allowed_module_to_another_one() -> None:
    with pytest.raises(ConfigError, match="there is no module"):
        providers.resolve("autogen_core._component_config.importlib.import_module", DEFAULT)


@pytest.mark.parametrize(
    ("made", "hint"),
    [
        (
            "shop_of_ours.py",
            "it is in this directory, from which nothing is imported unless you set PYTHONPATH=.",
        ),
        ("other.py", "if it is a file shop_of_ours.py of yours, set PYTHONPATH to its directory"),
    ],
)
def test_the_error_for_a_module_that_is_not_found_says_how_a_file_of_ones_own_is(
    made: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / made).touch()
    policy = Policy.from_environment(allow=["shop_of_ours"])
    with pytest.raises(ConfigError, match=f"(?i){re.escape(hint)}"):
        providers.resolve_function("shop_of_ours:stock", policy)


def test_a_component_defined_outside_the_namespaces_is_not_reached_through_an_allowed_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, monkeypatch, "outside_parts", COMPONENT)
    write_module(tmp_path, monkeypatch, "inside_parts", "from outside_parts import Part")
    with pytest.raises(NotAllowedError, match="of module 'outside_parts'"):
        providers.resolve("inside_parts.Part", Policy(DEFAULT.namespaces | {"inside_parts"}))
    assert providers.resolve(
        "inside_parts.Part", Policy(DEFAULT.namespaces | {"inside_parts", "outside_parts"})
    )


def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(ConfigError, match="did you mean 'AssistantAgent'"):
        providers.resolve("autogen_agentchat.agents.AssistentAgent", DEFAULT)
    with pytest.raises(ConfigError, match=r"no module 'autogen_agentchat\.agent'; did you mean 'agents'"):
        providers.resolve("autogen_agentchat.agent.AssistantAgent", DEFAULT)
    with pytest.raises(ConfigError, match="no module 'absent_parts'; is it installed"):
        providers.resolve("absent_parts.X", Policy(frozenset({"absent_parts"})))
    with pytest.raises(ConfigError, match=r"no module 'autogen_core\._types\.Foo'$"):
        providers.resolve("autogen_core._types.Foo.Bar", DEFAULT)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "import no_such_package.inner",
            "needs the package 'no_such_package', which is not installed; install it$",
        ),
        (
            "raise ImportError('no SseClient', name='mcp.types')",
            r"cannot be imported: no SseClient; a version that fits comes with `pip install '\.\[mcp\]'`$",
        ),
        ("raise ImportError('bring your own')", "cannot be imported: bring your own"),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("def broken(", "cannot be imported: SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    write_module(tmp_path, monkeypatch, "broken_parts", source)
    with pytest.raises(ConfigError, match=message):
        providers.resolve("broken_parts.X", Policy(frozenset({"broken_parts"})))


class WithoutMcp:
    """Finds no package of that name, as where it is not installed."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name.partition(".")[0] == "mcp":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_what_an_extra_brings_is_installed_by_that_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in list(sys.modules):
        if f"{module}.".startswith(("mcp.", "autogen_ext.tools.mcp.")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [WithoutMcp, *sys.meta_path])
    # any version of the package would be installed without it
    with pytest.raises(ConfigError, match=r"not installed; install it by `pip install '\.\[mcp\]'`$"):
        providers.resolve("autogen_ext.tools.mcp.McpWorkbench", DEFAULT)
    with pytest.raises(ConfigError, match=r"install it by `pip install 'autogen-ext\[anthropic\]'`$"):
        providers.resolve("autogen_ext.models.anthropic.AnthropicChatCompletionClient", DEFAULT)
    # the module of azure-core and of azure-identity
    assert providers.missing_package("azure.core").endswith("by `pip install 'autogen-ext[azure]'`")


def test_a_function_resolves_by_either_spelling() -> None:
    for path in ("codeact_team.core.providers:check", "codeact_team.core.providers.check"):
        assert providers.resolve_function(path, DEFAULT) is providers.check


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("os:system", "outside the allowed namespaces"),
        ("subprocess.run", "outside the allowed namespaces"),
        ("codeact_team.core.providers:importlib.import_module", "no module"),
        ("codeact_team.core.providers:contextmanager", "of module 'contextlib'"),
        ("codeact_team.core.providers:NAMESPACES_VARIABLE", "not a function"),
        ("codeact_team.core.providers:Policy", "not a function"),
        ("codeact_team.core.providers:chek", "did you mean 'check'"),
        ("check", "not a dotted path"),
        ("codeact_team:providers:check", "not a dotted path"),
    ],
)
def test_functions_obey_the_same_rules(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        providers.resolve_function(path, DEFAULT)


def test_a_users_function_needs_to_be_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path, monkeypatch, "my_approvals", "def approve(request): return request")
    with pytest.raises(NotAllowedError, match="--allow my_approvals"):
        providers.resolve_function("my_approvals:approve")
    assert "my_approvals" not in sys.modules
    monkeypatch.setenv("AUTOGEN_ALLOWED_PROVIDER_NAMESPACES", "my_approvals")
    assert providers.resolve_function("my_approvals:approve")(7) == 7


def test_a_field_for_a_function_is_checked_by_the_policy_that_validates_it() -> None:
    class Config(BaseModel):
        approval_func: FunctionPath

    allowed = {"approval_func": "codeact_team.core.providers:check"}
    assert (
        Config.model_validate(allowed, context=DEFAULT).approval_func == "codeact_team.core.providers:check"
    )
    for path, message in (("os:system", "allowed namespaces"), ("system", "dotted path")):
        with pytest.raises(ValidationError, match=message):
            Config.model_validate({"approval_func": path}, context=DEFAULT)
        # what dumps a component has no policy
        assert Config(approval_func=path).approval_func == path
