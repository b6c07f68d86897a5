"""An agent that acts by writing Python: step after step, on variables that are still there."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self

from autogen_agentchat.agents import ApprovalFuncType
from autogen_agentchat.base import Handoff
from autogen_agentchat.messages import BaseChatMessage, HandoffMessage, TextMessage
from autogen_core import CancellationToken, Component
from autogen_core.code_executor import CodeExecutor
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import ChatCompletionClient, LLMMessage, UserMessage
from autogen_core.tools import Workbench

from codeact_team.agents.base import RememberingAgent
from codeact_team.agents.codeact.budget import Limits
from codeact_team.agents.codeact.functions import Function, import_paths, read_functions
from codeact_team.agents.codeact.handoffs import Handoffs
from codeact_team.agents.codeact.loop import CodeActLoop
from codeact_team.agents.codeact.run import CodeActRun
from codeact_team.agents.codeact.settings import (
    CODEACT_SYSTEM_MESSAGE,
    CodeActAgentConfig,
    check_executor,
    check_limits,
    check_places,
    render,
)
from codeact_team.agents.messages import load_context, model_messages
from codeact_team.agents.settings import dumped
from codeact_team.agents.tool_settings import ToolLimits, ToolUserConfig
from codeact_team.agents.tool_use import AgentTools, tools_from
from codeact_team.agents.turn import Item, recorded
from codeact_team.approval import ApprovalRule, Handler
from codeact_team.errors import SettingError
from codeact_team.providers import resolve_function
from codeact_team.tools import Tool

_RESTARTED = "The interpreter was started anew since the conversation so far: its variables, functions and imports are gone."


class CodeActAgent(RememberingAgent, Component[CodeActAgentConfig]):
    """An agent that solves a task by writing Python, running it in an interpreter that lives on, and reading the result.

    An answer without code ends a run, and so does ``final_answer(value)`` called in the code. Where a limit is reached
    first, one last call to the model makes the best answer from what is there. The response's metadata holds an
    :class:`~codeact_team.observations.ExecutionRecord` of the code, how the run ended
    (:class:`~codeact_team.observations.Ending`) and, with reflection, the verdict on the answer; its ``models_usage``
    all calls.

    Variables and conversation live on from run to run, until the agent is reset.

    Args:
        name: Name of the agent.
        model_client: The model that writes code.
        code_executor: Where the code runs: a session executor.
        functions: Functions given to the code. The source of Python functions is shipped; an import path,
            ``module:function``, names what the image has, and is all that can be dumped.
        tools: Tools that the code may call, and that run on this machine: AutoGen's, functions, or their import
            paths. Only the last can be dumped, and tools that are components.
        workbench: Workbenches whose tools the code may call, such as MCP servers.
        handoffs: Agents that the work can be handed to, in a ``Swarm``.
        description: What the agent does.
        system_message: The model's instructions, with ``$functions`` and ``$tools`` where these are to be described.
        model_context: What the model remembers. Default: everything. Whatever it drops, the task, the functions and
            the latest result stay in view.
        model_client_stream: Whether the model's words are yielded as ``ModelClientStreamingChunkEvent``.
        stream_output: Whether output is yielded as ``ModelClientStreamingChunkEvent`` while the code runs.
        max_steps: How often the model may write, with or without code, in one run.
        max_seconds: Wall-clock time of one run in seconds, without that for which a person is asked for approval; what
            is under way then is stopped.
        max_tokens: Tokens of one run; the last call comes on top.
        max_retries_on_error: How many errors in a row the model may mend, deciding each time whether that is worth it.
            Default: an error is a result like others.
        max_reflections: How often a reflection on the answer may send the agent back to work.
        approval_func: Asked before each execution; the import path of a function can be dumped, a function cannot.
        tool_limits: What the calls of tools may cost.
        approval: Rules that allow or deny code blocks and calls of tools, or have a person asked; the first that fits
            decides.
        approval_handler: Who is asked: a function, or its import path. Default: the one of
            :func:`codeact_team.approval.asking`; where there is none, what would be asked is denied.

    Raises:
        ValueError: If the settings cannot work, or contradict each other.
    """

    component_config_schema = CodeActAgentConfig
    component_provider_override = "codeact_team.CodeActAgent"

    def __init__(
        self,
        name: str,
        model_client: ChatCompletionClient,
        code_executor: CodeExecutor,
        *,
        functions: Sequence[Function] = (),
        tools: Sequence[Tool] = (),
        workbench: Workbench | Sequence[Workbench] | None = None,
        handoffs: Sequence[Handoff | str] | None = None,
        description: str = CodeActAgentConfig.model_fields["description"].default,
        system_message: str = CODEACT_SYSTEM_MESSAGE,
        model_context: ChatCompletionContext | None = None,
        model_client_stream: bool = False,
        stream_output: bool = False,
        max_steps: int = 20,
        max_seconds: float | None = None,
        max_tokens: int | None = None,
        max_retries_on_error: int | None = None,
        max_reflections: int = 0,
        approval_func: ApprovalFuncType | str | None = None,
        tool_limits: ToolLimits | None = None,
        approval: Sequence[ApprovalRule] = (),
        approval_handler: Handler | str | None = None,
    ) -> None:
        super().__init__(name, description, model_context)
        limits = Limits(max_steps, max_seconds, max_tokens)
        check_limits(limits, max_retries_on_error=max_retries_on_error, max_reflections=max_reflections)
        self._functions = read_functions(functions)
        self._tools = AgentTools(
            name,
            tools=tools,
            workbench=workbench,
            limits=tool_limits,
            approval=approval,
            handler=approval_handler,
        )
        check_places(system_message, functions=bool(self._functions), tools=bool(self._tools))
        self._system_message = system_message
        self._approval_func = approval_func
        self._task: list[LLMMessage] = []
        self._variables_gone = False
        self._loop = CodeActLoop(
            name=name,
            model_client=model_client,
            executor=check_executor(code_executor),
            context=self._model_context,
            handoffs=Handoffs(handoffs or (), model_client),
            limits=limits,
            stream_words=model_client_stream,
            stream_output=stream_output,
            max_retries_on_error=max_retries_on_error,
            max_reflections=max_reflections,
            approve=resolve_function(approval_func) if isinstance(approval_func, str) else approval_func,
        )
        for function in self._functions:
            self._loop.executor.add_setup(function.setup)

    @property
    def produced_message_types(self) -> Sequence[type[BaseChatMessage]]:
        return (TextMessage, HandoffMessage) if self._loop.handoffs else (TextMessage,)

    async def on_messages_stream(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> AsyncGenerator[Item, None]:
        tools = await self._tools.begin_turn(cancellation_token)
        instructions = render(self._system_message, self._functions, tools.describe())
        run = CodeActRun(self._loop.limits, cancellation_token, tools, instructions)
        await self._take_up(messages, run)
        async with aclosing(recorded(run, self._loop.run(run))) as items:
            async for item in items:
                yield item

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        """Forget the conversation, the variables and what was granted."""
        await super().on_reset(cancellation_token)
        self._tools.reset()
        await self._loop.executor.restart()
        self._task, self._variables_gone = [], False

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved conversation; its variables are gone, which the model is told once."""
        await super().load_state(state)
        await self._loop.executor.restart()
        self._task, self._variables_gone = [], True

    async def close(self) -> None:
        """Stop the tools that were started for this agent."""
        await self._tools.stop()

    async def _take_up(self, messages: Sequence[BaseChatMessage], run: CodeActRun) -> None:
        """Make the messages, or those of the run before where there are none, the task of this run."""
        task = model_messages(messages)
        if self._variables_gone and await self._model_context.get_messages():
            task.insert(0, UserMessage(content=_RESTARTED, source=self.name))
        self._variables_gone = False
        for message in task:
            await self._model_context.add_message(message)
        run.task = self._task = task or self._task

    def _to_config(self) -> CodeActAgentConfig:
        if self._approval_func is not None and not isinstance(self._approval_func, str):
            raise SettingError(
                "approval_func: a function cannot be dumped: name it by its import path, `module:function`"
            )
        loop = self._loop
        return CodeActAgentConfig(
            name=self.name,
            model_client=dumped("model_client", loop.model_client),
            code_executor=dumped("code_executor", loop.executor),
            functions=import_paths(self._functions),
            **self._tools.to_config(),
            handoffs=loop.handoffs.dump() or None,
            description=self.description,
            system_message=self._system_message,
            model_context=dumped("model_context", self._model_context),
            model_client_stream=loop.stream_words,
            stream_output=loop.stream_output,
            max_steps=loop.limits.max_steps,
            max_seconds=loop.limits.max_seconds,
            max_tokens=loop.limits.max_tokens,
            max_retries_on_error=loop.max_retries_on_error,
            max_reflections=loop.max_reflections,
            approval_func=self._approval_func,
        )

    @classmethod
    def _from_config(cls, config: CodeActAgentConfig) -> Self:
        parts = {"model_client", "code_executor", "model_context", "handoffs"} | {
            *ToolUserConfig.model_fields
        }
        return cls(
            model_client=ChatCompletionClient.load_component(config.model_client),
            code_executor=CodeExecutor.load_component(config.code_executor),
            model_context=load_context(config.model_context),
            handoffs=config.handoffs,
            **tools_from(config),
            **config.model_dump(exclude=parts),
        )
