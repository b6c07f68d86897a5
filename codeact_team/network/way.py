"""The way out of one sandbox: what it needs there, and what becomes of each request."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from codeact_team.core.effects import current_dispatcher, emit, perform, speaker
from codeact_team.core.network_events import RequestDenied
from codeact_team.core.rulings import Ruling
from codeact_team.errors import BudgetError, JournalError, RecordedError
from codeact_team.network.authority import Authority
from codeact_team.network.control import (
    MOST_KEPT,
    Answered,
    ControlMessage,
    Denied,
    EgressAsked,
    EgressOpened,
    Noted,
    ReadRequests,
    Refused,
)
from codeact_team.network.inside.first_line import address_of
from codeact_team.network.names import CONNECT, authority_of, host_and_port
from codeact_team.network.requests import NetworkRequest, RequestOutcome, target_of, url_of
from codeact_team.network.rules import EgressRules, Target
from codeact_team.sandbox.temporary import TemporaryDirectory
from codeact_team.tools.approvals import Pause, current_approvals

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_DENIALS = 20
"""So many different denials are told of a unit, and kept until somebody takes them."""
_MOST_QUESTIONS = 20
"""The most questions to a person that are open at a time, so that code cannot flood anybody."""
_WENT_ON = "it went on when its block had ended"
_NOT_KEPT = "it was sent before, and its answer was not kept"
_UNKEPT = (
    "the answer to %s %s is not kept, as it has more than %d KiB or was not read to its end: code that needs it cannot run again "
    "if the run is resumed or replayed"
)
_NO_CODE = (
    "no code is known that runs now and asks for this: each request of this run is recorded as that of a block, so it can be "
    "made only while the block runs"
)


class Passing(Protocol):
    """What a way needs of the gateway."""

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop of the gateway, from any other."""
        ...

    async def proceed(self, asked: EgressAsked) -> RequestOutcome:
        """Have the proxy send what is allowed, and wait for its end; in the loop of the gateway."""
        ...


_NOBODY = Ruling("deny", "no one to ask", "a person has to be asked, and none can be while no block runs")
_WITHDRAWN = Ruling("deny", "no one to ask", "its code has ended before a person had answered")
HostPort = tuple[str, int]


@dataclass(eq=False)
class _Performer:
    """Who runs code in a session, fork or process: requests of that code are effects of this."""

    loop: asyncio.AbstractEventLoop
    context: contextvars.Context
    part: object
    pause: Pause
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    asking: dict[HostPort, asyncio.Future[Ruling | None]] = field(
        default_factory=dict[HostPort, asyncio.Future[Ruling | None]]
    )
    """The open questions about hosts. Each performer has its own: a run is parked once all that is under way waits."""
    failure: JournalError | None = None
    """Why the run cannot go on."""
    denials: dict[object, RequestDenied] = field(default_factory=dict[object, RequestDenied])

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the performer's loop and context, from the loop of the gateway."""
        here = asyncio.get_running_loop()
        result: asyncio.Future[T] = here.create_future()
        task: asyncio.Task[T] | None = None

        def begin() -> None:
            nonlocal task
            task = self.loop.create_task(work, context=self.context)
            self.tasks.add(task)
            task.add_done_callback(finish)

        def finish(task: asyncio.Task[T]) -> None:
            self.tasks.discard(task)
            here.call_soon_threadsafe(settle, task)

        def settle(task: asyncio.Task[T]) -> None:
            if result.done():
                return
            if task.cancelled():
                result.cancel()
            elif (error := task.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(task.result())

        def cancel() -> None:
            if task is not None:
                task.cancel()

        self.loop.call_soon_threadsafe(begin)
        try:
            return await result
        except asyncio.CancelledError:
            self.loop.call_soon_threadsafe(cancel)
            raise


class EgressPolicy:
    """What an executor lets its code reach, as long as it lives: its sandboxes and their ways come and go.

    Args:
        rules: The rules, with their counts.

    Attributes:
        answers: What persons have said of a host and a port: it holds from then on.
        questions: How many questions to persons are open.
    """

    def __init__(self, rules: EgressRules) -> None:
        self.rules = rules
        self.answers: dict[HostPort, Ruling] = {}
        self.questions = 0
        self._denials: dict[object, RequestDenied] = {}

    def recall_request(self, method: str, url: str) -> None:
        """Count a request that was allowed before the run was interrupted, for rules that allow a number of them."""
        self.rules.decide(target_of(method, url))

    def recall_answer(self, name: str, *, is_allowed: bool, reason: str) -> None:
        """Take what a person had said of a host, named with its port, before the run was interrupted."""
        decision = "allow" if is_allowed else "deny"
        self.answers[host_and_port(name, None)] = Ruling(decision, "an answer on record", reason)

    def note_denial(self, denied: RequestDenied) -> None:
        """Note that something was denied."""
        _keep(self._denials, denied)

    def take_denials(self) -> Sequence[RequestDenied]:
        """Return what was denied since the last call of this, and forget it."""
        taken, self._denials = [*self._denials.values()], {}
        return taken


class Way:
    """The way out of one sandbox; made by :func:`~.gateway.open_way`.

    Attributes:
        number: Its number at the proxy.
        policy: What may be reached.
        directory: The directory of this machine with the socket and the certificates.
        hosts: The sandbox's own addresses for the names that stand in full in rules.
        certificate: What programs in the sandbox have to trust where connections are opened, as PEM.
        opened: What the proxy has to know.
        passing: The gateway.
    """

    def __init__(
        self,
        number: int,
        policy: EgressPolicy,
        credentials: Sequence[Mapping[str, Any]],
        trusted: str,
        authority: Authority,
        passing: Passing,
    ) -> None:
        self.number = number
        self.policy = policy
        self.passing = passing
        self._held = TemporaryDirectory()
        self.directory: Path = Path(self._held.path)
        # the code's user enters it, and sees nothing else
        self.directory.chmod(0o711)
        self._performers: dict[str, _Performer] = {}
        self._is_recorded = False
        """Whether code runs in it as an effect of a run: nothing of it is sent that is none."""
        self.hosts: Mapping[str, str] = {
            name: address_of(place) for place, name in enumerate(policy.rules.exact_names)
        }
        self.certificate: str = authority.certificate_pem
        self.opened: EgressOpened = EgressOpened(
            sandbox=number,
            token=secrets.token_hex(32),
            names={address: name for name, address in self.hosts.items()},
            authority=authority.pem,
            trusted=trusted,
            credentials=credentials,
        )

    @property
    def placeholders(self) -> Mapping[str, str]:
        """The variables of the sandbox in whose place its requests get keys."""
        return {one["name"]: one["placeholder"] for one in self.opened.credentials if one["placeholder"]}

    @property
    def socket(self) -> Path:
        """The socket of this machine to which the forwarder connects."""
        return self.directory / "socket"

    def begin(self, unit: str, part: object, *, pause: Pause = nullcontext) -> None:
        """Have the requests of a unit be effects of the present context, until :meth:`end`.

        Args:
            unit: The session, fork or process, as its supervisor names it.
            part: The executor.
            pause: Makes a context manager within which the code's time stands still.
        """
        context = contextvars.copy_context()
        self._is_recorded = self._is_recorded or current_dispatcher() is not None
        self._performers[unit] = _Performer(asyncio.get_running_loop(), context, part, pause)

    def end(self, unit: str) -> _Performer:
        """Have the requests of a unit be nobody's effects, and those under way go on as such. Returns who has performed them."""
        performer = self._performers.pop(unit)
        performer.ended.set()
        return performer

    @asynccontextmanager
    async def performing(
        self, unit: str, part: object, *, pause: Pause = nullcontext
    ) -> AsyncGenerator[None, None]:
        """Within it, the requests of a unit are effects of the present context; as :meth:`begin`.

        Raises:
            JournalError: In the end, if one of them could not be recorded, or its record not be read.
        """
        self.begin(unit, part, pause=pause)
        try:
            yield
        finally:
            performer = self.end(unit)
            while performer.tasks:
                await asyncio.wait(performer.tasks)
        if performer.failure is not None:
            raise performer.failure

    async def decide(self, asked: EgressAsked) -> ControlMessage:
        """Decide about a request, and see it through. Returns what the proxy is told last; in the loop of the gateway."""
        rules = self.policy.rules
        performer = self._performers.get(asked.unit)
        if asked.method == CONNECT and rules.opens(asked.host, asked.port):
            denial = rules.may_reach(asked.host, asked.port)
            return ReadRequests(asked.number) if denial is None else self._denied(asked, denial, performer)
        if performer is None and self._is_recorded:
            return Denied(asked.number, f"{asked.method} {url_of(asked)} was not sent: {_NO_CODE}")
        rule = ruling = rules.decide(Target(asked.host, asked.port, asked.method, asked.target))
        if ruling.decision == "ask":
            ruling = await self._ask(asked, ruling, performer)
        if ruling.decision != "allow":
            return self._denied(asked, ruling, performer)
        sending = _Sending(asked, self.passing.proceed)
        if performer is None:
            outcome = await sending.begin()
        elif performer.ended.is_set():
            return Denied(asked.number, f"{asked.method} {url_of(asked)} was not sent: {_NO_CODE}")
        else:
            is_repeatable = rules.is_repeatable(rule)
            outcome = await performer.run(self._perform(sending, performer, is_repeatable=is_repeatable))
        if isinstance(outcome, Denied):
            return outcome
        if sending.task is None:
            return _recorded(asked, outcome)
        # it may go on when its block has ended
        outcome = await sending.task
        return Noted(asked.number) if outcome.is_sent else self._unsent(asked, outcome, performer)

    async def _perform(
        self, sending: _Sending, performer: _Performer, *, is_repeatable: bool
    ) -> RequestOutcome | Denied:
        """Perform a request as an effect, in the performer's loop."""
        asked = sending.asked

        async def send() -> RequestOutcome:
            passing = asyncio.ensure_future(self.passing.call(sending.begin()))
            ended = asyncio.ensure_future(performer.ended.wait())
            try:
                await asyncio.wait({passing, ended}, return_when=asyncio.FIRST_COMPLETED)
                outcome = (
                    passing.result() if passing.done() else RequestOutcome(error=_WENT_ON, is_kept=False)
                )
            finally:
                ended.cancel()
            if not outcome.is_kept and asked.method != CONNECT and current_dispatcher() is not None:
                logger.warning(_UNKEPT, asked.method, url_of(asked), MOST_KEPT >> 10)
            return outcome

        source = current_approvals().source
        effect = NetworkRequest(asked, performer.part, source, is_repeatable=is_repeatable)
        try:
            return await perform(effect, send)
        except (BudgetError, RecordedError) as refused:
            return _not_sent(asked, refused)
        except JournalError as error:
            # the run ends by it
            performer.failure = error
            return _not_sent(asked, error)

    async def _ask(self, asked: EgressAsked, ruling: Ruling, performer: _Performer | None) -> Ruling:
        """Ask a person about the host, unless somebody has: the answer holds from then on."""
        key, policy = (asked.host, asked.port), self.policy
        if (answer := policy.answers.get(key)) is not None:
            return answer
        if performer is None or performer.ended.is_set():
            return _NOBODY
        if (asking := performer.asking.get(key)) is None:
            if policy.questions >= _MOST_QUESTIONS:
                return Ruling("deny", ruling.by, f"{_MOST_QUESTIONS} questions about hosts are open already")

            def close(_: object) -> None:
                policy.questions -= 1
                del performer.asking[key]

            policy.questions += 1
            asking = asyncio.ensure_future(performer.run(self._ask_performer(key, ruling, performer)))
            performer.asking[key] = asking
            asking.add_done_callback(close)
        return await asyncio.shield(asking) or _WITHDRAWN

    async def _ask_performer(self, key: HostPort, ruling: Ruling, performer: _Performer) -> Ruling | None:
        """Ask in the performer's loop. Returns ``None`` if its code ends before that is answered."""
        answers = self.policy.answers
        approving = current_approvals().host(
            authority_of(*key), ruling.reason, pause=performer.pause, answered=lambda: answers.get(key)
        )
        asking, ended = asyncio.ensure_future(approving), asyncio.ensure_future(performer.ended.wait())
        try:
            await asyncio.wait({asking, ended}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                try:
                    record = asking.result()
                except RecordedError as refused:
                    return Ruling("deny", ruling.by, str(refused))
                answers[key] = Ruling(record.decision, record.by, record.reason)
                return answers[key]
        except JournalError as error:
            performer.failure = error
            return Ruling("deny", ruling.by, str(error))
        finally:
            ended.cancel()
            asking.cancel()
            await asyncio.wait({asking})
        return None

    def refused(self, refused: Refused) -> None:
        """Note what the proxy has refused by itself; in the loop of the gateway."""
        self._tell(RequestDenied(reason=refused.reason), self._performers.get(refused.unit))

    def _denied(self, asked: EgressAsked, ruling: Ruling, performer: _Performer | None) -> Denied:
        host, port = asked.host, asked.port
        entry = self.policy.rules.missing(host, port)
        self._tell(RequestDenied(host=host, port=port, reason=ruling.reason, entry=entry), performer)
        return Denied(asked.number, f"{asked.method} {url_of(asked)} is not allowed: {ruling.reason}")

    def _unsent(self, asked: EgressAsked, outcome: RequestOutcome, performer: _Performer | None) -> Denied:
        reason, status = outcome.error or "", outcome.status or 502
        if status == 403:
            # the address, while a name that leads nowhere was not denied
            self._tell(RequestDenied(host=asked.host, port=asked.port, reason=reason), performer)
        return Denied(asked.number, reason, status)

    def _tell(self, denied: RequestDenied, performer: _Performer | None) -> None:
        self.policy.note_denial(denied)
        if performer is not None and _keep(performer.denials, denied):
            performer.loop.call_soon_threadsafe(_emit, denied, context=performer.context)

    def remove(self) -> None:
        """Remove the directory. Blocks."""
        self._held.remove()


class _Sending:
    """What was allowed, and is sent at most once. Used in the loop of the gateway.

    Attributes:
        asked: The request.
        task: Sees it through, once it is begun.
    """

    def __init__(
        self, asked: EgressAsked, proceed: Callable[[EgressAsked], Awaitable[RequestOutcome]]
    ) -> None:
        self.asked = asked
        self.task: asyncio.Future[RequestOutcome] | None = None
        self._proceed = proceed

    async def begin(self) -> RequestOutcome:
        """Send it, and return what becomes of it."""
        self.task = asyncio.ensure_future(self._proceed(self.asked))
        # whoever waits for it may go
        return await asyncio.shield(self.task)


def _not_sent(asked: EgressAsked, error: Exception) -> Denied:
    return Denied(asked.number, f"{asked.method} {url_of(asked)} was not sent: {error}")


def _keep(denials: dict[object, RequestDenied], denied: RequestDenied) -> bool:
    """Keep the first denial of each host, up to so many. Returns whether it is one."""
    key = denied.reason if denied.host is None else (denied.host, denied.port)
    if key in denials or len(denials) >= _MOST_DENIALS:
        return False
    denials[key] = denied
    return True


def _emit(denied: RequestDenied) -> None:
    denied.agent = speaker()
    emit(denied)


def _recorded(asked: EgressAsked, outcome: RequestOutcome) -> ControlMessage:
    """The answer that a journal has, which may be none."""
    if not outcome.is_sent:
        return Denied(asked.number, outcome.error or "", outcome.status or 502)
    if outcome.status is not None and outcome.is_kept:
        return Answered(asked.number, outcome.status, outcome.headers, outcome.content)
    return Denied(asked.number, outcome.error or _NOT_KEPT, 502)
