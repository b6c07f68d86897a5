"""An agent that writes code, runs it, repairs it and reflects on the result: AutoGen's, without its defects."""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Self

from autogen_agentchat.agents import ApprovalFuncType
from autogen_agentchat.base import Response
from autogen_agentchat.messages import (
    BaseChatMessage,
    CodeExecutionEvent,
    CodeGenerationEvent,
    ModelClientStreamingChunkEvent,
    TextMessage,
    ThoughtEvent,
)
from autogen_core import CancellationToken, Component
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    LLMMessage,
    SystemMessage,
    UserMessage,
)
from autogen_core.tools import Workbench

from codeact_team.agents.base import RememberingAgent
from codeact_team.agents.calls import complete, text_of_result, visible_to
from codeact_team.agents.messages import FoundCode, add_to_context, find_code, load_context
from codeact_team.agents.settings import SYSTEM_MESSAGE, CodeExecutorAgentConfig, check_settings, dumped
from codeact_team.agents.step import run_step, warming_up
from codeact_team.agents.tool_settings import ToolLimits, ToolUserConfig
from codeact_team.agents.tool_use import AgentTools, TurnTools, tools_from
from codeact_team.agents.turn import Item, Turn, recorded
from codeact_team.approval import ApprovalRule, Handler
from codeact_team.errors import CodeActTeamError, SettingError
from codeact_team.execution import ExecutionResult, Outcome, SessionCodeExecutor, StreamingCodeExecutor
from codeact_team.observations import as_data, observe
from codeact_team.parsing import extract_code
from codeact_team.providers import resolve_function
from codeact_team.retry import decide_retry
from codeact_team.tools import Tool

_MISSING_APPROVAL = (
    "No approval function set for CodeExecutorAgent. This means code will be executed automatically without human "
    "oversight, by an executor that is not known to be sandboxed. Set an approval_func that reviews the code, or use "
    "one of codeact_team's executors."
)


class CodeExecutorAgent(RememberingAgent, Component[CodeExecutorAgentConfig]):
    """An agent that runs code, and with a model client also writes it, repairs it and reflects on the result.

    A drop-in for AutoGen 0.7's class of that name: the same parameters, events, texts and methods, and any AutoGen
    executor. Without a model client it runs the code blocks in the messages. With one it generates code, runs it,
    lets the model decide whether an error is worth another attempt, regenerates with that reason in view, and sums up.

    The response's metadata holds an :class:`~codeact_team.observations.ExecutionRecord`, its ``models_usage`` all
    calls of the turn.

    Args:
        name: Name of the agent.
        code_executor: Where and how code runs.
        model_client: The model that writes code.
        model_context: What the model remembers. Default: everything.
        model_client_stream: Whether the model's words are yielded as ``ModelClientStreamingChunkEvent``.
        max_retries_on_error: How often code that failed may be written anew.
        description: What the agent does. Default: one of AutoGen's two texts.
        system_message: The model's instructions, ``None`` for none.
        sources: Whose code to run. Default: everybody's.
        supported_languages: Labels of the code that is run. Default: what the executor runs, or python and sh.
        approval_func: Asked before each execution; the import path of a function can be dumped, a function cannot.
        code_from_messages: Whether the first attempt runs the code in the messages and the model is asked on error.
        reflect: Whether the model sums up the result; if not, the result itself is the response.
        default_language: What a code block without a label holds. Default: such blocks are left alone.
        stream_output: Whether output is yielded as ``ModelClientStreamingChunkEvent`` while the code runs.
        tools: Tools that the code may call, and that run on this machine, for session executors: AutoGen's, functions,
            or their import paths. Only the last can be dumped, and tools that are components.
        workbench: Workbenches whose tools the code may call, such as MCP servers.
        tool_limits: What the calls of tools may cost.
        approval: Rules that allow or deny code blocks and calls of tools, or have a person asked; the first that fits
            decides.
        approval_handler: Who is asked: a function, or its import path. Default: the one of
            :func:`codeact_team.approval.asking`; where there is none, what would be asked is denied.

    Raises:
        ValueError: If the settings contradict each other.
    """

    DEFAULT_TERMINAL_DESCRIPTION: ClassVar[str] = (
        "A computer terminal that performs no other action than running Python scripts (provided to it quoted in "
        "```python code blocks), or sh shell scripts (provided to it quoted in ```sh code blocks)."
    )
    DEFAULT_AGENT_DESCRIPTION: ClassVar[str] = (
        "A Code Execution Agent that generates and executes Python and shell scripts based on user instructions. It "
        "ensures correctness, efficiency, and minimal errors while gracefully handling edge cases."
    )
    DEFAULT_SYSTEM_MESSAGE: ClassVar[str] = SYSTEM_MESSAGE
    NO_CODE_BLOCKS_FOUND_MESSAGE: ClassVar[str] = (
        "No code blocks found in the thread. Please provide at least one markdown-encoded code block to execute (i.e., "
        "quoting code in ```python or ```sh code blocks)."
    )
    DEFAULT_SUPPORTED_LANGUAGES: ClassVar[list[str]] = ["python", "sh"]

    component_config_schema = CodeExecutorAgentConfig
    component_provider_override = "codeact_team.CodeExecutorAgent"

    def __init__(
        self,
        name: str,
        code_executor: CodeExecutor,
        *,
        model_client: ChatCompletionClient | None = None,
        model_context: ChatCompletionContext | None = None,
        model_client_stream: bool = False,
        max_retries_on_error: int = 0,
        description: str | None = None,
        system_message: str | None = DEFAULT_SYSTEM_MESSAGE,
        sources: Sequence[str] | None = None,
        supported_languages: Sequence[str] | None = None,
        approval_func: ApprovalFuncType | str | None = None,
        code_from_messages: bool = False,
        reflect: bool = True,
        default_language: str | None = None,
        stream_output: bool = False,
        tools: Sequence[Tool] = (),
        workbench: Workbench | Sequence[Workbench] | None = None,
        tool_limits: ToolLimits | None = None,
        approval: Sequence[ApprovalRule] = (),
        approval_handler: Handler | str | None = None,
    ) -> None:
        if description is None:
            description = (
                self.DEFAULT_TERMINAL_DESCRIPTION if model_client is None else self.DEFAULT_AGENT_DESCRIPTION
            )
        super().__init__(name, description, model_context)
        self._code_executor = code_executor
        self._model_client = model_client
        self._model_client_stream = model_client_stream
        self._max_retries_on_error = max_retries_on_error
        self._system_message = system_message or None
        self._sources = None if sources is None else list(sources)
        self._supported_languages = None if supported_languages is None else list(supported_languages)
        self._approval_func = approval_func
        self._approve = resolve_function(approval_func) if isinstance(approval_func, str) else approval_func
        self._code_from_messages = code_from_messages
        self._reflect = reflect
        self._default_language = default_language
        self._stream_output = stream_output
        self._tools = AgentTools(
            name,
            tools=tools,
            workbench=workbench,
            limits=tool_limits,
            approval=approval,
            handler=approval_handler,
        )
        self._turn_tools: TurnTools | None = None
        if self._tools and not isinstance(code_executor, SessionCodeExecutor):
            raise SettingError(
                f"tools: code in {type(code_executor).__name__} cannot call them; that needs a session: "
                "DockerSessionCodeExecutor or ConfinedSessionCodeExecutor"
            )
        check_settings(
            has_model=model_client is not None,
            max_retries_on_error=max_retries_on_error,
            code_from_messages=code_from_messages,
            sources=sources,
            languages=self.languages,
            default_language=default_language,
        )
        # a StreamingCodeExecutor is a sandbox, and says itself what is loosened
        if approval_func is None and not isinstance(code_executor, StreamingCodeExecutor):
            warnings.warn(_MISSING_APPROVAL, UserWarning, stacklevel=2)

    @property
    def languages(self) -> Sequence[str]:
        """Labels of the code that is run."""
        if self._supported_languages is not None:
            return self._supported_languages
        if isinstance(self._code_executor, StreamingCodeExecutor):
            return self._code_executor.supported_languages
        return self.DEFAULT_SUPPORTED_LANGUAGES

    async def on_messages_stream(
        self, messages: Sequence[BaseChatMessage], cancellation_token: CancellationToken
    ) -> AsyncGenerator[Item, None]:
        turn = Turn(cancellation_token, await self._tools.begin_turn(cancellation_token))
        self._turn_tools = turn.tools
        try:
            async with aclosing(recorded(turn, self._take_turn(messages, turn))) as items:
                async for item in items:
                    yield item
        finally:
            self._turn_tools = None

    async def extract_code_blocks_from_messages(self, messages: Sequence[BaseChatMessage]) -> list[CodeBlock]:
        """The code blocks in messages of any type, from the sources this agent listens to."""
        return self._find_code(messages).blocks

    async def execute_code_block(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        """Run code blocks after asking for approval; the result is as it would be passed on."""
        result = ExecutionResult(exit_code=0, output="")
        async with aclosing(self._run(code_blocks, cancellation_token)) as items:
            async for item in items:
                if isinstance(item, ExecutionResult):
                    result = item
        return result

    async def on_reset(self, cancellation_token: CancellationToken) -> None:
        """Forget the conversation and what was granted, and end what the code left running."""
        await super().on_reset(cancellation_token)
        self._tools.reset()
        await self._restart()

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on with a saved conversation; what code of another conversation left running is ended.

        What the code has done lives on in the executor's workspace, not in the state.
        """
        await super().load_state(state)
        await self._restart()

    async def close(self) -> None:
        """Stop the tools that were started for this agent."""
        await self._tools.stop()

    async def _restart(self) -> None:
        if isinstance(self._code_executor, StreamingCodeExecutor):
            await self._code_executor.restart()

    async def _take_turn(self, messages: Sequence[BaseChatMessage], turn: Turn) -> AsyncGenerator[Item, None]:
        client = self._model_client
        if client is not None:
            await add_to_context(self._model_context, messages)
        if client is None or self._code_from_messages:
            turn.blocks = await self.extract_code_blocks_from_messages(messages)
            turn.unsupported = self._find_code(messages).unsupported
            if not turn.blocks:
                yield self._respond(turn, turn.with_unsupported(self.NO_CODE_BLOCKS_FOUND_MESSAGE))
                return
        steps = self._run_blocks(turn) if client is None else self._write_and_run(client, turn)
        async with warming_up(self._code_executor), aclosing(steps) as items:
            async for item in items:
                yield item

    async def _run_blocks(self, turn: Turn) -> AsyncGenerator[Item, None]:
        """Run the turn's blocks; the result is the response."""
        async with aclosing(self._execute(turn)) as items:
            async for item in items:
                yield item
        yield self._respond(turn, turn.report())

    async def _write_and_run(self, client: ChatCompletionClient, turn: Turn) -> AsyncGenerator[Item, None]:
        """Generate, execute, decide, regenerate; then reflect. Starts with the turn's blocks, if there are any."""
        for attempt in range(self._max_retries_on_error + 1):
            if attempt > 0 or not turn.blocks:
                async with aclosing(self._complete(client, turn)) as items:
                    async for item in items:
                        yield item
                self._extract(turn)
                if not turn.blocks:
                    yield self._respond(turn, turn.with_unsupported(turn.text))
                    return
                yield self._generated(attempt, turn.text, turn.blocks)
            async with aclosing(self._execute(turn)) as items:
                async for item in items:
                    yield item
            yield CodeExecutionEvent(retry_attempt=attempt, result=turn.result, source=self.name)
            if (reason := await self._reason_to_retry(client, attempt, turn)) is None:
                break
            yield self._generated(
                attempt, f"Attempt number: {attempt + 1}\nProposed correction: {reason}", []
            )
        if not self._reflect or turn.stopped:
            yield self._respond(turn, turn.report())
            return
        async with aclosing(self._complete(client, turn)) as items:
            async for item in items:
                yield item
        yield self._respond(turn, turn.text)

    async def _complete(self, client: ChatCompletionClient, turn: Turn) -> AsyncGenerator[Item, None]:
        """Let the model go on; its words are then the turn's text."""
        calls = complete(
            client,
            await self._conversation(client),
            source=self.name,
            stream=self._model_client_stream,
            cancellation_token=turn.cancellation_token,
        )
        async with aclosing(calls) as items:
            async for item in items:
                if isinstance(item, CreateResult):
                    turn.usage.add(item.usage)
                    turn.text = text_of_result(item)
                    if item.thought:
                        yield ThoughtEvent(content=item.thought, source=self.name)
                    answer = AssistantMessage(content=turn.text, source=self.name, thought=item.thought)
                    await self._model_context.add_message(answer)
                    if item.finish_reason == "length":
                        await self._remember("This answer was cut off at the model's token limit.")
                else:
                    yield item

    async def _reason_to_retry(self, client: ChatCompletionClient, attempt: int, turn: Turn) -> str | None:
        """Why to try again, by the model's decision, which is then part of the conversation; ``None`` for not."""
        if turn.result.exit_code == 0 or turn.result.outcome is Outcome.DENIED or turn.stopped:
            return None
        if attempt == self._max_retries_on_error:
            return None
        answer = await decide_retry(
            client, await self._conversation(client), cancellation_token=turn.cancellation_token
        )
        decision = answer.value
        turn.usage.add(answer.usage)
        turn.decisions.append(decision)
        verdict = "Proposed correction" if decision.retry else "No further attempt"
        await self._remember(f"{verdict}: {decision.reason}")
        return decision.reason if decision.retry else None

    async def _execute(self, turn: Turn) -> AsyncGenerator[Item, None]:
        """Run the turn's blocks; what came of them is then its result, and part of the conversation."""
        overridden = type(self).execute_code_block is not CodeExecutorAgent.execute_code_block
        run = self._run_overridden if overridden else self._run
        try:
            async with aclosing(run(turn.blocks, turn.cancellation_token)) as items:
                async for item in items:
                    if isinstance(item, ExecutionResult):
                        turn.result = item
                        turn.executed.append(turn.blocks)
                    elif self._stream_output:
                        yield ModelClientStreamingChunkEvent(content=item, source=self.name)
        except CodeActTeamError as error:
            await self._remember(f"The code could not be run: {error}")
            raise
        await self._remember(turn.with_unsupported(as_data(turn.result.output)))

    async def _run(
        self, blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        step = run_step(
            self._code_executor,
            blocks,
            tools=self._turn_tools or await self._tools.begin_turn(cancellation_token),
            approval=self._approve,
            context=await self._model_context.get_messages(),
            cancellation_token=cancellation_token,
        )
        async with aclosing(step) as items:
            async for item in items:
                yield item

    async def _run_overridden(
        self, blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        """Let a subclass run the blocks in its own way, as AutoGen does; it may be what guards the execution."""
        result = await self.execute_code_block(blocks, cancellation_token)
        yield result if isinstance(result, ExecutionResult) else observe(result)

    async def _conversation(self, client: ChatCompletionClient) -> list[LLMMessage]:
        described = "" if self._turn_tools is None else self._turn_tools.describe()
        instructions = "\n\n".join(filter(None, [self._system_message, described]))
        system = [SystemMessage(content=instructions)] if instructions else []
        return visible_to(client, [*system, *await self._model_context.get_messages()])

    async def _remember(self, text: str) -> None:
        if self._model_client is None:
            return
        await self._model_context.add_message(UserMessage(content=text, source=self.name))

    def _find_code(self, messages: Sequence[BaseChatMessage]) -> FoundCode:
        return find_code(
            messages, self.languages, sources=self._sources, default_language=self._default_language
        )

    def _extract(self, turn: Turn) -> None:
        extraction = extract_code(turn.text, self.languages, default_language=self._default_language)
        turn.blocks, turn.unsupported = extraction.blocks, extraction.unsupported

    def _generated(self, attempt: int, text: str, blocks: list[CodeBlock]) -> CodeGenerationEvent:
        return CodeGenerationEvent(retry_attempt=attempt, content=text, code_blocks=blocks, source=self.name)

    def _respond(self, turn: Turn, text: str) -> Response:
        message = TextMessage(
            content=text, source=self.name, models_usage=turn.usage.total, metadata=turn.metadata()
        )
        return Response(chat_message=message, inner_messages=turn.inner_messages)

    def _to_config(self) -> CodeExecutorAgentConfig:
        if self._approval_func is not None and not isinstance(self._approval_func, str):
            raise SettingError(
                "Cannot serialize CodeExecutorAgent with approval_func set to a function: name the function by its "
                "import path, `module:function`"
            )
        client = self._model_client
        return CodeExecutorAgentConfig(
            name=self.name,
            code_executor=dumped("code_executor", self._code_executor),
            model_client=None if client is None else dumped("model_client", client),
            model_context=dumped("model_context", self._model_context),
            model_client_stream=self._model_client_stream,
            max_retries_on_error=self._max_retries_on_error,
            description=self.description,
            # a dump leaves out what is None, and an absent message is the default one
            system_message=self._system_message or "",
            sources=self._sources,
            supported_languages=self._supported_languages,
            approval_func=self._approval_func,
            code_from_messages=self._code_from_messages,
            reflect=self._reflect,
            default_language=self._default_language,
            stream_output=self._stream_output,
            **self._tools.to_config(),
        )

    @classmethod
    def _from_config(cls, config: CodeExecutorAgentConfig) -> Self:
        client = config.model_client
        parts = {"code_executor", "model_client", "model_context"} | {*ToolUserConfig.model_fields}
        return cls(
            code_executor=CodeExecutor.load_component(config.code_executor),
            model_client=None if client is None else ChatCompletionClient.load_component(client),
            model_context=load_context(config.model_context),
            **tools_from(config),
            **config.model_dump(exclude=parts),
        )
