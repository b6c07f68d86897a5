"""The agent that runs the code that others write, and repairs it."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from typing import Annotated, ClassVar

from autogen_agentchat.base import Response
from autogen_agentchat.messages import BaseChatMessage, TextMessage
from autogen_core import CancellationToken, Component, ComponentModel
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    LLMMessage,
    SystemMessage,
    UserMessage,
)
from pydantic import AfterValidator, Field

from codeact_team.agents.agent_config import ExecutingConfig
from codeact_team.agents.base import ExecutingAgent
from codeact_team.agents.block_calls import CANCELLED, run_blocks, warming_up
from codeact_team.agents.messages import (
    FoundCode,
    add_to_context,
    describe_for_turn,
    fault_of,
    find_code,
    text_of_result,
    visible_to,
)
from codeact_team.agents.observations import observe
from codeact_team.agents.turn import CodeTurn, YieldItem
from codeact_team.core.execution import ExecutionResult, Outcome
from codeact_team.core.executor_interface import SessionCodeExecutor, StreamingCodeExecutor
from codeact_team.core.sandbox_description import without_note
from codeact_team.core.settings import in_config, read_as, takes_settings
from codeact_team.errors import CodeActTeamError, SettingError
from codeact_team.models.clients import WrappedClient
from codeact_team.text.fences import Languages
from codeact_team.text.markdown import extract_from_reply
from codeact_team.text.quoting import as_data, make_inert

_SYSTEM_MESSAGE = (
    "You are a Code Execution Agent. Your role is to generate and execute Python code and shell scripts based on user "
    "instructions, ensuring correctness, efficiency, and minimal errors. Handle edge cases gracefully. Python code "
    "should be provided in ```python code blocks, and sh shell scripts should be provided in ```sh code blocks for "
    "execution."
)
"""The default instructions of the model: AutoGen's text."""


class CodeExecutorAgentConfig(ExecutingConfig):  # noqa: D101 - editors show that of the class with these settings
    code_executor: Annotated[CodeExecutor, in_config(ComponentModel)] = Field(kw_only=False)
    """Where and how code runs."""
    model_client: Annotated[ChatCompletionClient | None, in_config(ComponentModel | None)] = None
    """The model that writes code; without one, the agent runs the code in the messages."""
    max_retries_on_error: int = Field(default=0, ge=0)
    """The most times that code which failed is rewritten."""
    description: str | None = None
    """Description of the agent, for whoever selects the next speaker. Default: one of AutoGen's two texts."""
    # a dump leaves out None, and without a message the default one is used
    system_message: Annotated[str | None, AfterValidator(lambda text: text or "")] = _SYSTEM_MESSAGE
    """The model's instructions, to which a description of the sandbox is added; empty or null for none."""
    sources: Annotated[Sequence[str] | None, read_as(list[str] | None)] = None
    """The agents whose code is run. Default: all."""
    supported_languages: Annotated[Sequence[str] | None, read_as(list[str] | None)] = None
    """Labels of the code that is run. Default: the executor's languages, or python and sh if it names none."""
    code_from_messages: bool = False
    """Whether the first attempt runs the code in the messages, so that the model is asked only if that fails."""
    reflect: bool = True
    """Whether the model sums up the result; if not, the result itself is the response."""
    default_language: str | None = None
    """Language of a code block without a label. Default: such blocks are not run."""

    def check(self, languages: Sequence[str]) -> None:
        """Refuse settings that contradict each other, and warn of those without effect."""
        has_model = self.model_client is not None
        if self.max_retries_on_error > 0 and not has_model:
            raise SettingError("max_retries_on_error > 0 needs a model_client, which rewrites the code")
        if self.memory and not has_model:
            raise SettingError("memory needs a model_client, whose context it adds to")
        if self.code_from_messages and not has_model:
            raise SettingError(
                "code_from_messages needs a model_client: without one, code always comes from messages"
            )
        if self.sources is not None and has_model and not self.code_from_messages:
            # AutoGen's class accepts them silently
            text = (
                f"sources of {self.name} has no effect with a model_client, unless code_from_messages is true"
            )
            warnings.warn(text, UserWarning, stacklevel=4)
        if not languages:
            raise SettingError("supported_languages is empty: no code would ever run")
        if self.default_language is not None and Languages(languages).resolve(self.default_language) is None:
            raise SettingError(
                f"default_language is {self.default_language!r}, which is not among the languages that are run: "
                + ", ".join(languages)
            )


_MISSING_APPROVAL = (
    "No approval function set for CodeExecutorAgent. This means code will be executed automatically without human "
    "oversight, by an executor that is not known to be sandboxed. Set an approval_func that reviews the code, or use "
    "one of codeact_team's executors."
)


class CodeExecutorAgent(ExecutingAgent[CodeExecutorAgentConfig], Component[CodeExecutorAgentConfig]):
    """An agent that runs code, and with a model client also writes it, repairs it and reflects on the result.

    A drop-in for AutoGen 0.7's class of that name: the same parameters, events, texts and methods, and any AutoGen
    executor. Without a model client it runs the code blocks in the messages. With one it generates code, runs it,
    lets the model decide whether an error is worth another attempt, regenerates with that reason in view, and sums up.

    The response's metadata holds an :class:`~codeact_team.ExecutionRecord`; its ``models_usage``
    counts all calls of the turn.

    ``tools`` may hold functions, and ``approval_func`` and ``approval_handler`` may be functions. Only functions that are
    given by import path can be dumped. Default of ``approval_handler``: the one of :func:`codeact_team.asking`; if there is
    none, such a question is answered by a denial.

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
    DEFAULT_SYSTEM_MESSAGE: ClassVar[str] = _SYSTEM_MESSAGE
    NO_CODE_BLOCKS_FOUND_MESSAGE: ClassVar[str] = (
        "No code blocks found in the thread. Please provide at least one markdown-encoded code block to execute (i.e., "
        "quoting code in ```python or ```sh code blocks)."
    )
    DEFAULT_SUPPORTED_LANGUAGES: ClassVar[list[str]] = ["python", "sh"]

    component_config_schema = CodeExecutorAgentConfig
    component_provider_override = "codeact_team.CodeExecutorAgent"

    @takes_settings(CodeExecutorAgentConfig)
    def __init__(self, settings: CodeExecutorAgentConfig) -> None:  # noqa: D417 - the settings are its parameters
        """An agent that runs code, and with a model client also writes it, repairs it and reflects on the result.

        Args:
            name: Name of the agent: unique in its team, and a Python identifier.
            code_executor: Where and how code runs.
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
            model_client: The model that writes code; without one, the agent runs the code in the messages.
            max_retries_on_error: The most times that code which failed is rewritten.
            description: Description of the agent, for whoever selects the next speaker. Default: one of
                AutoGen's two texts.
            system_message: The model's instructions, to which a description of the sandbox is added; empty or
                null for none.
            sources: The agents whose code is run. Default: all.
            supported_languages: Labels of the code that is run. Default: the executor's languages, or python
                and sh if it names none.
            code_from_messages: Whether the first attempt runs the code in the messages, so that the model is
                asked only if that fails.
            reflect: Whether the model sums up the result; if not, the result itself is the response.
            default_language: Language of a code block without a label. Default: such blocks are not run.
        """
        if settings.description is None:
            has_model = settings.model_client is not None
            settings.description = (
                self.DEFAULT_AGENT_DESCRIPTION if has_model else self.DEFAULT_TERMINAL_DESCRIPTION
            )
        super().__init__(settings, settings.description, settings.model_client, settings.code_executor)
        self._turn: CodeTurn | None = None
        if self._tools and not isinstance(self._code_executor, SessionCodeExecutor):
            raise SettingError(
                f"tools: code in {type(self._code_executor).__name__} cannot call them; that needs a session: "
                "DockerSessionCodeExecutor or ConfinedSessionCodeExecutor"
            )
        if self._settings.rollback_on_error and not isinstance(self._code_executor, SessionCodeExecutor):
            raise SettingError(
                f"rollback_on_error: {type(self._code_executor).__name__} keeps no variables to go back to; that needs a "
                "session: DockerSessionCodeExecutor or ConfinedSessionCodeExecutor"
            )
        settings.check(self.languages)
        # a StreamingCodeExecutor is a sandbox, and reports its relaxations itself
        if self._approve is None and not isinstance(self._code_executor, StreamingCodeExecutor):
            warnings.warn(_MISSING_APPROVAL, UserWarning, stacklevel=3)

    @property
    def languages(self) -> Sequence[str]:
        """Labels of the code that is run."""
        if self._settings.supported_languages is not None:
            return self._settings.supported_languages
        if isinstance(self._code_executor, StreamingCodeExecutor):
            return self._code_executor.supported_languages
        return self.DEFAULT_SUPPORTED_LANGUAGES

    async def extract_code_blocks_from_messages(self, messages: Sequence[BaseChatMessage]) -> list[CodeBlock]:
        """The code blocks in messages of any type, from the sources this agent listens to."""
        return self._find_code(messages).blocks

    async def execute_code_block(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        """Run code blocks after asking for approval; the result is shortened as for the next agent."""
        turn = self._turn
        result = await run_blocks(
            self._code_executor,
            code_blocks,
            tools=turn.tools if turn else await self._tools.begin_turn(cancellation_token),
            approval=self._approve,
            context=await self._model_context.get_messages(),
            cancellation_token=cancellation_token,
            emit=turn and turn.output,
            message_id=turn and turn.message_id,
            dispatcher=self._dispatcher,
            max_pictures=self._settings.max_pictures,
            rolls_back=self._settings.rollback_on_error,
        )
        return observe(result)

    async def _take_turn(
        self,
        messages: Sequence[BaseChatMessage],
        cancellation_token: CancellationToken,
        yield_item: YieldItem,
    ) -> Response:
        self._turn = turn = CodeTurn(
            source=self.name,
            yield_item=yield_item,
            dispatcher=self._dispatcher,
            cancellation_token=cancellation_token,
            tools=await self._tools.begin_turn(cancellation_token),
            stream_output=self._settings.stream_output,
            max_pictures=self._settings.max_pictures,
        )
        try:
            text = await self._work(messages, turn)
        finally:
            self._turn = None
        return turn.respond(TextMessage(content=text, source=self.name))

    async def _work(self, messages: Sequence[BaseChatMessage], turn: CodeTurn) -> str:
        """Work on the messages; return the text of the response."""
        client = self._model_client
        if client is not None:
            known = [without_note(message) for message in messages] if self._describes_sandbox else messages
            await add_to_context(self._model_context, known)
            await self._recall(turn)
        attempt = 0
        if client is None or self._settings.code_from_messages:
            turn.blocks = await self.extract_code_blocks_from_messages(messages)
            found = self._find_code(messages)
            turn.unsupported, turn.unclosed, turn.invented = found.unsupported, found.unclosed, found.invented
            if not turn.blocks:
                text = turn.with_left_out(self.NO_CODE_BLOCKS_FOUND_MESSAGE)
                if client is None or not turn.unclosed or not self._settings.max_retries_on_error:
                    return text
                await self._remember(text)
                await turn.wrote(attempt, text, [])
                attempt = 1
        async with warming_up(self._code_executor):
            if client is not None:
                return await self._write_and_run(client, turn, attempt)
            await self._execute(turn)
            return turn.report()

    async def _write_and_run(self, client: WrappedClient, turn: CodeTurn, first: int) -> str:
        """Generate, execute, decide, regenerate; then reflect. If the turn has blocks already, they are the first attempt."""
        for attempt in range(first, self._settings.max_retries_on_error + 1):
            if not turn.blocks:
                await self._write(client, turn, attempt)
                if not (turn.blocks or self._asks_anew(turn, attempt)):
                    turn.add(turn.left_out)
                    return turn.text
            if turn.blocks:
                await self._execute(turn)
                await turn.ran(attempt)
                await self._decide_retry(client, turn, attempt)
            if turn.blocks:
                break
        if not self._settings.reflect or turn.stopped:
            return turn.report()
        await self._complete(client, turn)
        if turn.fault is not None:
            await self._remember(f"This answer was {turn.fault.was}.")
        return turn.text

    async def _write(self, client: WrappedClient, turn: CodeTurn, attempt: int) -> None:
        """Let the model write code, and tell it if its reply is broken."""
        await self._complete(client, turn)
        if turn.fault is not None:
            await self._remember(turn.fault.to_text())
        if turn.blocks or self._asks_anew(turn, attempt):
            await turn.wrote(attempt, turn.text, turn.blocks)

    def _asks_anew(self, turn: CodeTurn, attempt: int) -> bool:
        return turn.fault is not None and attempt < self._settings.max_retries_on_error

    async def _complete(self, client: WrappedClient, turn: CodeTurn) -> None:
        """Ask the model; its reply becomes the turn's text, and the code in it the turn's blocks."""
        stream = self._settings.model_client_stream
        result = await turn.complete(client, await self._conversation(client), stream=stream)
        turn.text = text_of_result(result)
        found = extract_from_reply(
            turn.text, self.languages, default_language=self._settings.default_language
        )
        turn.text, turn.invented = turn.text[: found.invented], found.invented is not None
        answer = AssistantMessage(content=turn.text, source=self.name, thought=result.thought)
        await self._model_context.add_message(answer)
        turn.blocks, turn.unsupported, turn.unclosed = found.blocks, found.unsupported, []
        turn.fault = fault_of(result, found)
        if turn.fault is not None:
            turn.blocks = []
            # another agent that reads it must not run it either
            turn.text = make_inert(turn.text)
            turn.add([f"[This reply was {turn.fault.was}, so no code in it was run.]"])

    async def _decide_retry(self, client: WrappedClient, turn: CodeTurn, attempt: int) -> None:
        """Let the model decide whether to retry code that failed; if so, the turn's blocks are dropped."""
        if turn.result.exit_code == 0 or turn.result.outcome is Outcome.DENIED or turn.stopped:
            return
        if attempt == self._settings.max_retries_on_error:
            return
        conversation = await self._conversation(client)
        decision = await turn.decide_retry(client, conversation, turn.cancellation_token)
        await self._remember(decision.to_text())
        if decision.retry:
            turn.blocks = []
            await turn.wrote(attempt, f"Attempt number: {attempt + 1}\n{decision.to_text()}", [])

    async def _execute(self, turn: CodeTurn) -> None:
        """Run the turn's blocks; the result is kept in the turn, and added to the conversation."""
        try:
            # as with AutoGen's class, a subclass may override this, perhaps to guard the execution
            result = await self.execute_code_block(turn.blocks, turn.cancellation_token)
        except asyncio.CancelledError:
            # a later task would find code without a result, and its model might trust that it ran
            await self._remember(CANCELLED)
            raise
        except CodeActTeamError as error:
            await self._remember(f"The code could not be run: {error}")
            raise
        turn.result = result if isinstance(result, ExecutionResult) else observe(result)
        turn.executed.append(turn.blocks)
        await turn.read_pictures()
        await self._remember(self._vision.add(turn.with_left_out(as_data(turn.result.output)), turn.drawn))

    async def _conversation(self, client: WrappedClient) -> list[LLMMessage]:
        turn = self._turn
        described = "" if turn is None else turn.tools.describe()
        instructions = "\n\n".join(
            filter(None, [self._settings.system_message, await self._sandbox(turn), described])
        )
        system = [SystemMessage(content=instructions)] if instructions else []
        return self._vision.show(visible_to(client, [*system, *await self._model_context.get_messages()]))

    @property
    def _describes_sandbox(self) -> bool:
        return bool(self._settings.system_message) and isinstance(self._code_executor, StreamingCodeExecutor)

    async def _sandbox(self, turn: CodeTurn | None) -> str:
        """The description of the sandbox for the instructions, which is requested once per turn."""
        if turn is None or not self._describes_sandbox:
            return ""
        if turn.sandbox is None:
            turn.sandbox = await describe_for_turn(
                self._code_executor, self.name, self._dispatcher, turn.cancellation_token
            )
        return turn.sandbox

    async def _remember(self, text: str) -> None:
        if self._model_client is None:
            return
        await self._model_context.add_message(UserMessage(content=text, source=self.name))

    def _find_code(self, messages: Sequence[BaseChatMessage]) -> FoundCode:
        return find_code(
            messages,
            self.languages,
            sources=self._settings.sources,
            default_language=self._settings.default_language,
        )

    def _to_config(self) -> CodeExecutorAgentConfig:
        approve = self._settings.approval_func
        if approve is not None and not isinstance(approve, str):
            raise SettingError(
                "Cannot serialize CodeExecutorAgent with approval_func set to a function: name the function by its "
                "import path, `module:function`"
            )
        return super()._to_config()
