"""What the project promises about itself."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import llms
import pytest

import codeact_team
from codeact_team.core.shipped import install

ROOT = Path(__file__).parents[1]

EVENTS = {
    "Approval",
    "ArtifactKept",
    "AttemptBegan",
    "AttemptEnded",
    "BatchBegan",
    "BatchNoted",
    "BlockBegan",
    "BlockEnded",
    "BlocksRepeated",
    "BlocksRepeating",
    "BudgetSpent",
    "ClockReadingBegan",
    "ClockReadingEnded",
    "Decision",
    "DescriptionBegan",
    "DescriptionEnded",
    "FilesPutBack",
    "ForkBegan",
    "ForkEnded",
    "Judged",
    "LineBroken",
    "ListenerFailed",
    "MessageSent",
    "ModelCallBegan",
    "ModelCallEnded",
    "ModelCallPutOff",
    "Opened",
    "OtherEffectBegan",
    "OtherEffectEnded",
    "OtherEvent",
    "Output",
    "ProcessBegan",
    "ProcessEnded",
    "PromotionBegan",
    "PromotionEnded",
    "QuestionAnswered",
    "QuestionAsked",
    "Replayed",
    "RequestBegan",
    "RequestDenied",
    "RequestEnded",
    "RunBegan",
    "RunEnded",
    "RunParked",
    "RunResult",
    "RunResumed",
    "SandboxLost",
    "SandboxPreparing",
    "SandboxStarted",
    "SandboxStarting",
    "SandboxStopped",
    "TaskBegan",
    "TaskEnded",
    "TaskProgressed",
    "TaskRetried",
    "ToolCallBegan",
    "ToolCallEnded",
    "ToolListingBegan",
    "ToolListingEnded",
    "TurnBegan",
    "TurnEnded",
    "Words",
}
PUBLIC = EVENTS | {
    "Answer",
    "AnswerCutOffError",
    "AnyEvent",
    "ApprovalRequest",
    "ApprovalResponse",
    "ApprovalRule",
    "Artifact",
    "AsyncSandbox",
    "BatchLimits",
    "BatchResult",
    "BoundName",
    "BudgetError",
    "BudgetTermination",
    "BudgetTerminationConfig",
    "CallOutcome",
    "Checkpoint",
    "CodeActAgent",
    "CodeActAgentConfig",
    "CodeActTeamError",
    "CodeExecutorAgent",
    "CodeExecutorAgentConfig",
    "ConfigError",
    "ConfinedCommandLineCodeExecutor",
    "ConfinedCommandLineCodeExecutorConfig",
    "ConfinedSessionCodeExecutor",
    "ConfinedSessionCodeExecutorConfig",
    "ConfinementError",
    "Credential",
    "Dispatcher",
    "DockerCommandLineCodeExecutor",
    "DockerCommandLineCodeExecutorConfig",
    "DockerSessionCodeExecutor",
    "DockerSessionCodeExecutorConfig",
    "Ending",
    "EgressRule",
    "EngineError",
    "Event",
    "ExecutionRecord",
    "ExecutionResult",
    "ForEvery",
    "ForkError",
    "JobResult",
    "JournalError",
    "ModelError",
    "NotAllowedError",
    "Outcome",
    "Policy",
    "ProcessOutput",
    "ProcessResult",
    "Question",
    "RecordedError",
    "ReflectionAgent",
    "ReflectionAgentConfig",
    "ReflectionTermination",
    "ReflectionTerminationConfig",
    "RetryDecision",
    "RunEnding",
    "SandboxError",
    "SandboxLostError",
    "SandboxPool",
    "SandboxProcess",
    "Scope",
    "SessionCodeExecutor",
    "SessionResult",
    "SettingError",
    "StreamingCodeExecutor",
    "SyncSandbox",
    "TerminalSize",
    "ToolLimits",
    "Verdict",
    "WorkbenchError",
    "ask_with",
    "asking",
    "describe_sandbox",
    "dump_config",
    "load_config",
    "open_pool",
    "open_sandbox",
    "open_team",
    "record_run",
    "replay_run",
    "result_from_metadata",
    "round_robin_team",
    "run_batch",
    "validate_config",
    "wrap",
}


def test_the_public_names_are_these() -> None:
    assert set(codeact_team.__all__) == PUBLIC
    assert set(dir(codeact_team)) == PUBLIC
    assert all(getattr(codeact_team, name) is not None for name in PUBLIC)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'CodeExecuterAgent'"):
        _ = codeact_team.CodeExecuterAgent  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]


def test_ci_runs_the_test_command_of_the_readme() -> None:
    command = "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/pytest"
    assert f"$ {command}\n" in (ROOT / "README.md").read_text()
    assert f"\n{command}\n" in (ROOT / ".ci" / "run").read_text()


def test_what_is_to_be_installed_is_told_in_one_way() -> None:
    # no index has the package, so its name there would be refused
    told = [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("configs/*"),
        *ROOT.glob("examples/*.py"),
        ROOT / "README.md",
    ]
    lines = [line for path in told for line in path.read_text().splitlines() if "pip install" in line]
    extras = [found for line in lines for found in re.findall(r"pip install '[^']*\[[\w,-]+\]'", line)]
    ours = [
        line for line in extras if "autogen-ext" not in line and "[dev]" not in line and "[test]" not in line
    ]
    assert len(ours) > 9
    assert {line for line in ours if line != install(line.partition("[")[2].rstrip("]'"))} == set()


def test_the_list_of_pages_for_a_model_is_made_from_the_pages() -> None:
    assert llms.FILE.read_text() == llms.llms_txt(), "write it anew: python docs/llms.py"


def test_the_version_is_that_of_the_newest_section_of_the_changelog() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    unreleased, *released = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert unreleased == "[Unreleased]"
    # before the first release, nothing has a version
    assert [heading.partition(" - ")[0] for heading in released[:1]] in ([], [f"[{version}]"])
    assert all(re.fullmatch(r"\[[\d.]+\] - \d{4}-\d\d-\d\d", heading) for heading in released)


@pytest.mark.parametrize(
    "script",
    [*sorted((ROOT / ".ci").iterdir()), *sorted((ROOT / "codeact_team").rglob("*.sh"))],
    ids=lambda path: path.name,
)
def test_shell_scripts_have_no_syntax_error(script: Path) -> None:
    shell = script.read_text().startswith("#!/usr/bin/env bash")
    subprocess.run(["bash" if shell else "sh", "-n", script], check=True)


def test_every_example_is_tested() -> None:
    tests = ROOT / "tests"
    files = [*tests.glob("test_*example*.py"), *tests.glob("adapters/*.py"), *tests.glob("suites/*.py")]
    tested = "".join(file.read_text() for file in files)
    assert all(example.name in tested for example in (ROOT / "examples").glob("*.py"))


def test_each_exception_to_the_processor_time_is_a_test() -> None:
    for name in tomllib.loads((ROOT / "tests" / "processor_time.toml").read_text()):
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(), name
