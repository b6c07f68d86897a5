"""Writes logs of recorded runs, by Inspect's own writer: one sample for each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from autogen_agentchat.messages import BaseChatMessage
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalError,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalSample,
    EvalScore,
    EvalSpec,
    EvalStats,
    condense_sample,
    write_eval_log,
)
from inspect_ai.model import ChatMessage, ChatMessageAssistant, ChatMessageUser, ModelOutput, ModelUsage
from inspect_ai.scorer import CORRECT, INCORRECT, Score

from codeact_team.core.events import MessageSent
from codeact_team.errors import JournalError
from codeact_team.exports.inspect_transcript import Transcript
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import RunResult

_SCORER = "accepted"
_SEVERAL = "several"
_MOST = 10_000
"""Events, and effects, of a run; a log is in memory as a whole."""


def write_log(runs: Sequence[RecordedRun], file: Path) -> list[str]:
    """Write a log of some runs. Blocks.

    Args:
        runs: What to write; at least one.
        file: Where to. Its ending, ``.eval`` or ``.json``, says in which of Inspect's formats.

    Returns:
        For each run that could be read in part only, why that is.

    Raises:
        JournalError: If a run cannot be read, or is none of this version.
        OSError: If the file cannot be written.
    """
    problems: list[str] = []
    samples: list[EvalSample] = []
    for run in runs:
        try:
            samples.append(_sample(run, problems))
        except (LookupError, TypeError, ValueError) as error:
            raise JournalError(
                f"{run.directory.path} has something that this version of codeact-team did not write: {error!r}"
            ) from error
    write_eval_log(_log(runs, samples), file.absolute())
    return problems


def _log(runs: Sequence[RecordedRun], samples: Sequence[EvalSample]) -> EvalLog:
    first = min(run.about.began for run in runs)
    scores = [sample.scores[_SCORER].value for sample in samples if sample.scores]
    accuracy = EvalMetric(name="accuracy", value=scores.count(CORRECT) / max(1, len(scores)))
    results = EvalResults(
        total_samples=len(samples),
        completed_samples=len(scores),
        scores=[EvalScore(name=_SCORER, scorer=_SCORER, metrics={"accuracy": accuracy})] if scores else [],
    )
    spent: dict[str, ModelUsage] = {}
    for sample in samples:
        for model, used in sample.model_usage.items():
            spent[model] = spent.get(model, ModelUsage()) + used
    names = {Path(run.about.config).stem for run in runs}
    spec = EvalSpec(
        created=_iso(first),
        task=names.pop() if len(names) == 1 else _SEVERAL,
        dataset=EvalDataset(
            name="runs", samples=len(samples), sample_ids=[str(sample.id) for sample in samples]
        ),
        model=next(iter(spent)) if len(spent) == 1 else (_SEVERAL if spent else "none"),
        config=EvalConfig(),
        packages=runs[0].about.versions,
    )
    ends = [sample.completed_at for sample in samples if sample.completed_at is not None]
    stats = EvalStats(started_at=_iso(first), completed_at=max(ends, default=""), model_usage=spent)
    return EvalLog(
        status="success", eval=spec, results=results, stats=stats, samples=[*map(condense_sample, samples)]
    )


def _sample(run: RecordedRun, problems: list[str]) -> EvalSample:
    about = run.about
    # the events have the same problems
    transcript = Transcript(Path(about.config).stem, about.began, _readable(run.effects(), []))
    result: RunResult | None = None
    messages: list[ChatMessage] = []
    last = about.began
    for event in _readable(run.events(), problems):
        last = event.at
        transcript(event)
        if isinstance(event, RunResult):
            result = event
        elif isinstance(event, MessageSent) and isinstance(event.message, BaseChatMessage):
            identity, text, source = event.message.id, event.message.to_text(), event.message.source
            messages.append(
                ChatMessageUser(id=identity, content=text)
                if source == "user"
                else ChatMessageAssistant(id=identity, content=text, metadata={"agent": source})
            )
    transcript.close()
    sample = EvalSample(
        id=about.id,
        epoch=1,
        input=run.task or "",
        target="",
        messages=messages,
        events=transcript.events,
        model_usage=transcript.usage,
        metadata={"config": about.config, "directory": str(run.directory.path), "versions": about.versions},
        started_at=_iso(about.began),
        completed_at=_iso(last),
        total_time=last - about.began,
        working_time=last - about.began,
    )
    if result is not None:
        _conclude(sample, result)
    else:
        sample.metadata["ending"] = "running" if run.is_running else "it broke off"
    return sample


def _conclude(sample: EvalSample, result: RunResult) -> None:
    answer = result.answer
    sample.metadata |= {"ending": result.ending.value, "files": [file.path for file in result.files]}
    if result.stop_reason is not None:
        sample.metadata["stop_reason"] = result.stop_reason
    if answer is not None:
        model = next(iter(sample.model_usage), "")
        sample.output = ModelOutput.from_content(model, answer)
    if result.error is not None:
        sample.error = EvalError(message=result.error, traceback="", traceback_ansi="")
    if result.ending.is_final:
        value = CORRECT if result.ending.is_success else INCORRECT
        sample.scores = {_SCORER: Score(value=value, answer=answer, explanation=result.problem)}


def _readable(items: Iterator[Any], problems: list[str]) -> Iterator[Any]:
    """The readable items of a journal; adds to ``problems`` why they end early."""
    try:
        yield from islice(items, _MOST)
        if next(items, None) is not None:
            problems.append(
                f"a run has more than the {_MOST:,} events that are exported: the rest is left out"
            )
    except JournalError as error:
        problems.append(str(error))


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
