"""An agent that acts by writing Python, step after step, in an interpreter that keeps its variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, HandoffMessage, TextMessage
from autogen_core import CancellationToken, Component
from autogen_core.models import LLMMessage, UserMessage

from codeact_team.agents.base import ExecutingAgent
from codeact_team.agents.codeact.attempts import Attempts
from codeact_team.agents.codeact.config import (
    CodeActAgentConfig,
    check_executor,
    check_places,
    import_paths,
    read_functions,
    render,
)
from codeact_team.agents.codeact.loop import CodeActLoop
from codeact_team.agents.codeact.reply import Handoffs, OutputSchema
from codeact_team.agents.codeact.run import CodeActRun
from codeact_team.agents.messages import describe_for_turn, model_messages
from codeact_team.agents.turn import YieldItem
from codeact_team.core.executor_interface import SessionCodeExecutor
from codeact_team.core.sandbox_description import without_note
from codeact_team.core.settings import takes_settings
from codeact_team.models.clients import wrap_client

_RESTARTED = "The interpreter was started anew since the conversation so far: its variables, functions and imports are gone."
_LEFT_TO_OTHERS = (
    "The conversation so far was loaded from a saved state. Do not count on its variables, functions and imports: other "
    "agents use the interpreter, too."
)


class CodeActAgent(ExecutingAgent[CodeActAgentConfig], Component[CodeActAgentConfig]):
    """An agent that solves a task by writing Python, running it in a persistent interpreter, and reading the result.

    An answer without code ends a run, and so does ``final_answer(value)`` called in the code. If a limit is reached
    first, one last call to the model makes the best answer it can. The response's metadata holds an
    :class:`~codeact_team.ExecutionRecord` of the code, the end of the run (:class:`~codeact_team.Ending`) and, with
    reflection, the verdict on the answer; its ``models_usage`` counts all calls.

    Variables and conversation persist from run to run, until the agent is reset.

    ``tools`` and ``functions`` may hold Python functions; the source of ``functions`` is sent to the interpreter.
    ``approval_func`` and ``approval_handler`` may be functions, too. Only functions that are given by import path can be
    dumped. Default of ``approval_handler``: the one of :func:`codeact_team.asking`; if there is none, such a question is
    answered by a denial. ``output_schema`` may be the class of a Pydantic model, whose JSON Schema is dumped:
    ``Model.model_validate_json(result.messages[-1].content)`` is the answer.

    Raises:
        ValueError: If the settings cannot work, or contradict each other.
    """

    component_config_schema = CodeActAgentConfig
    component_provider_override = "codeact_team.CodeActAgent"

    @takes_settings(CodeActAgentConfig)
    def __init__(self, settings: CodeActAgentConfig) -> None:  # noqa: D417 - the settings are its parameters
        """An agent that solves a task by writing Python, running it in a persistent interpreter, and reading the result.

        Args:
            name: Name of the agent: unique in its team, and a Python identifier.
            model_client: The model that writes code.
            code_executor: Where the code runs: a session executor, whose interpreter keeps its variables.
            max_pictures: The most pictures drawn by code, the latest ones, that are sent to a model with
                vision at a time.
            model_context: The part of the conversation that the model reads. Default: all of it. A CodeAct
                agent's model always reads the task, the functions and the latest result.
            memory: Stores that add what they know to the model's context at the start of each turn.
            tools: Tools that the code may call, and that run on this machine: components, or import paths of
                functions, `module:function`.
            workbench: Workbenches whose tools the code may call, such as MCP servers.
            tool_limits: Limits of tool calls.
            approval: Rules that allow or deny code blocks and calls of tools, or have a person asked; the
                first that fits decides.
            approval_timeout: The fate of a question that nobody is there to answer: `deny`, or `park`. A run
                that is parked waits until nothing else is under way, and ends. After `codeact-team answer`,
                `codeact-team resume` continues it, on whatever day. The code that asked then runs again, and
                its earlier calls get the same answers. If it could reach more than its workspace, such as a
                network, it does not run again. Its outcome is reported as unknown, its variables are lost,
                and it has to ask again. In a run that is not recorded, the question is denied.
            approval_handler: Import path, `module:function`, of the function that is asked. Default: the
                person at the terminal.
            approval_func: Import path, `module:function`, of a function that approves or denies each
                execution.
            model_client_stream: Whether the model's words are streamed.
            stream_output: Whether the code's output is streamed while it runs.
            rollback_on_error: Whether the variables, and the files of the workspace, are rolled back after
                code that fails, so that the next attempt does not begin with half of the changes. Needs a
                session executor. Calls of tools, and effects outside the workspace, are not undone. Nothing
                is rolled back if variables cannot be copied: while code holds files open for writing,
                sockets, threads or processes; that is reported.
            max_steps: The most replies of the model, with or without code, in one run.
            max_seconds: Wall-clock time of one run in seconds, without the time that a person takes to
                approve. Then the current step is stopped, and one last call of at most 30 seconds makes the
                answer.
            max_tokens: Tokens of one run, prompts included; a last call that makes the answer is not counted.
            functions: Functions that the code can call: import paths, `module:function`, of functions in the
                image.
            handoffs: Agents that the work can be handed to, in a Swarm: their names, or more about each.
            description: Description of the agent, for whoever selects the next speaker.
            system_message: The model's instructions, with `$functions` and `$tools` where these are to be
                described; empty for none. The sandbox is described at `$sandbox`, or at the end.
            max_retries_on_error: The most errors in a row that the model may repair; it decides each time
                whether that is worth it. Default: an error is a result like any other.
            max_reflections: The most times that a reflection on the answer sends the agent back to work.
                Default: there is no reflection.
            attempts: The number of attempts at a task that are made in parallel. Each has a fork of the
                session with the current variables and files, and its own conversation and limits. The model
                then chooses the best answer, and the agent continues with the variables, files and
                conversation of that attempt. The others are dropped, but their cost counts. Until then only
                tools in `tool_limits.repeatable` are called. Only one attempt is made if variables cannot be
                copied: while code holds files open for writing, sockets, threads or processes; that is
                reported. A model at temperature 0 makes the same attempt each time.
            output_schema: A JSON Schema for the answer, which is the argument of `final_answer` in the code,
                or a reply that is nothing but JSON. The message of the answer then is that JSON. The model is
                told if its answer does not fit, and goes on within its limits; when these are reached, there
                is no answer. Default: an answer is any text.
        """
        output = None if settings.output_schema is None else OutputSchema(settings.output_schema)
        client = wrap_client(settings.model_client)
        super().__init__(settings, settings.description, client, settings.code_executor)
        settings.check()
        self._functions = read_functions(settings.functions)
        check_places(settings.system_message, functions=bool(self._functions), tools=bool(self._tools))
        self._task: list[LLMMessage] = []
        self._remark: str | None = None
        """A remark for the model about its variables, put before the next task."""
        self._loop = CodeActLoop(
            settings=settings,
            model_client=client,
            executor=check_executor(self._code_executor, attempts=settings.attempts),
            context=self._model_context,
            vision=self._vision,
            handoffs=Handoffs(settings.handoffs or (), client),
            output=output,
            approve=self._approve,
        )
        for function in self._functions:
            self._loop.executor.add_setup(function.setup)

    @property
    def code_executor(self) -> SessionCodeExecutor:
        """The executor, in whose sandbox a program may run processes of its own."""
        return self._loop.executor

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage, HandoffMessage) if self._loop.handoffs else (TextMessage,)

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        """Forget the conversation, the variables and granted approvals.

        Waits for another agent's block in the session. Variables are kept if another agent has used the interpreter.
        """
        await super().on_reset(cancellation_token)
        self._task, self._remark = [], None

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved conversation; the model is told once that its variables are gone, or may be."""
        await super().load_state(state)
        self._task, self._remark = [], _LEFT_TO_OTHERS if self._left_to_others else _RESTARTED

    async def _take_turn(
        self,
        messages: Sequence[BaseChatMessage],
        cancellation_token: CancellationToken,
        yield_item: YieldItem,
    ) -> Response:
        tools = await self._tools.begin_turn(cancellation_token)
        instructions = self._settings.system_message
        if instructions:
            sandbox = await describe_for_turn(
                self._loop.executor, self.name, self._dispatcher, cancellation_token
            )
            instructions = render(instructions, self._functions, tools.describe(), sandbox)
        if (output := self._loop.output) is not None:
            instructions = f"{instructions}\n\n{output.describe()}".lstrip()
        run = CodeActRun(
            source=self.name,
            yield_item=yield_item,
            dispatcher=self._dispatcher,
            cancellation_token=cancellation_token,
            tools=tools,
            stream_output=self._settings.stream_output,
            max_pictures=self._settings.max_pictures,
            limits=self._settings,
            instructions=instructions,
            task=await self._take_up(messages),
        )
        await self._recall(run)
        if self._settings.attempts > 1:
            return await Attempts(self._loop, run, self._settings.attempts).make()
        await self._loop.work(run)
        return self._loop.respond(run)

    async def _take_up(self, messages: Sequence[BaseChatMessage]) -> list[LLMMessage]:
        """Make the messages the task; without any, the task of the run before continues."""
        if self._settings.system_message:
            # the instructions describe the sandbox already
            messages = [without_note(message) for message in messages]
        task = model_messages(messages)
        if self._remark is not None and await self._model_context.get_messages():
            task.insert(0, UserMessage(content=self._remark, source=self.name))
        self._remark = None
        for message in task:
            await self._model_context.add_message(message)
        self._task = task or self._task
        return self._task

    def _dumped_parts(self) -> dict[str, Any]:
        output = self._loop.output
        return {
            **super()._dumped_parts(),
            "functions": import_paths(self._functions),
            "handoffs": self._loop.handoffs.dump() or None,
            "output_schema": None if output is None else output.schema,
        }
