"""Rules on what a sandbox may reach, and credentials that its requests get on their way out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from codeact_team.core.rulings import NO_RULE, AtMost, Decision, Glob, RuleChain, Ruling, matches
from codeact_team.errors import SettingError
from codeact_team.network.addresses import Network, range_refusal_of
from codeact_team.network.names import (
    CONNECT,
    ESCAPE,
    NameRefusedError,
    host_of,
    is_address,
    method_of,
    path_of,
    seen,
)

GRAMMAR = "grammar"
"""By what is denied that no rule may see."""
USUAL_PORTS = (80, 443)

_MOST_TOLD = 40
_ANY = "any host"
_VISIBLE = "".join(map(chr, range(ord("!"), ord("~") + 1)))
_PLAIN_HOST = re.compile(r"[a-z][a-z0-9-]*(?:\.[a-z0-9-]+)*\.[a-z][a-z0-9-]*")
"""Which YAML cannot take for anything but a text."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"(?P<name>[A-Za-z0-9!#$%&'*+.^_`|~-]+): *(?P<text>[!-~](?:[ -~]*[!-~])?)")
_OF_THE_CONNECTION = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_SHAPE = re.compile(r"[!-~]{1,4000}")
_FEWEST_STARS = 16
"""So many random characters nobody guesses, and nothing else in a request is like them."""


class EgressRule(BaseModel):
    """A decision on hosts, or on requests to them. Of several rules, the first that fits decides.

    What no rule fits is denied. A host is passed through as it is, unless a rule for it has `methods` or `paths`, or it has
    credentials: then each request to it is read and decided on.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    host: str
    """The host: a name such as `example.org`, which is that name alone; `*.example.org` for all names below it, without
    itself; an IP address; or `*` for any. Letter case does not count. The machine itself is no host."""
    methods: list[str] | None = Field(default=None, min_length=1)
    """The methods of requests that it fits, such as `[GET, HEAD]`. Default: all."""
    paths: list[Glob] | None = Field(default=None, min_length=1)
    """Globs for the paths of requests that it fits, such as `["/repos/*"]`. As in rules of approval, capitals and small
    letters differ, and the whole path has to fit one of them. The query, behind the `?`, is no part of it. Default: all."""
    ports: list[Annotated[int, Field(ge=1, le=65535, strict=True)]] = Field(
        default_factory=lambda: list(USUAL_PORTS), min_length=1
    )
    """The ports that it fits."""
    networks: list[str] = Field(default_factory=list[str])
    """Networks such as `10.0.0.0/8`, whose addresses the host may have though they are private or loopback. An address of this
    machine, or one for the metadata of clouds, takes a network that is this address alone."""
    decision: Decision
    """Whether to allow it, to deny it, or to ask a person."""
    reason: str = ""
    """The reason, for the code and the model if this is denied, and for the person who is asked."""
    at_most: AtMost = None
    """The number of requests, or of connections that are passed through, that this rule may allow. Then it fits no more, and
    what no later rule decides is denied."""
    repeatable: bool = False
    """Whether a request may be sent again by a resumed run that cannot know whether it was answered. GET, HEAD and OPTIONS
    always may."""

    @field_validator("host")
    @classmethod
    def _is_host(cls, text: str) -> str:
        if text == "*":
            return text
        below = text.removeprefix("*.")
        if "*" in below:
            raise ValueError(f"a star stands alone, or before a name: write *.example.org, not {text!a}")
        if below.startswith("."):
            raise ValueError(f"write *{below} for all names below {below[1:]}")
        host = host_of(below)
        if below != text and is_address(host):
            raise ValueError(f"nothing is below the address {host}: write {host}")
        return host if below == text else f"*.{host}"

    @field_validator("methods")
    @classmethod
    def _are_methods(cls, methods: list[str] | None) -> list[str] | None:
        for method in methods or ():
            if method_of(method) == CONNECT:
                raise ValueError(f"{CONNECT} is no request that can be read: leave out 'methods'")
        return methods

    @field_validator("paths")
    @classmethod
    def _are_paths(cls, paths: list[str] | None) -> list[str] | None:
        for glob in paths or ():
            _check_path(glob)
        return paths

    @field_validator("networks")
    @classmethod
    def _are_networks(cls, networks: list[str]) -> list[str]:
        return [_network(text) for text in networks]

    @model_validator(mode="after")
    def _may_be_reached(self) -> Self:
        if self.decision == "deny":
            if self.networks:
                raise ValueError("'networks' goes with 'decision: allow' and 'ask' only")
            return self
        if is_address(self.host) and (refusal := range_refusal_of(self.host, _parsed(self.networks))):
            alone = ip_network(self.host)
            advice = f": add networks: [{alone}] if it is meant"
            if range_refusal_of(self.host, [alone]):
                advice = ", which no rule can open"
            raise ValueError(f"{self.host} is {refusal}{advice}")
        return self

    def is_for(self, host: str, port: int) -> bool:
        """Whether it fits some request to this canonical host and port."""
        if port not in self.ports:
            return False
        if self.host.startswith("*"):
            return host.endswith(self.host[1:])
        return host == self.host

    def fits(self, target: Target) -> bool | None:
        """Whether it applies to this; ``None`` if the path is too long to be matched."""
        if not self.is_for(target.host, target.port):
            return False
        if self.methods is not None and target.method not in self.methods:
            return False
        if self.paths is None:
            return True
        fits = [matches(glob, target.path) for glob in self.paths]
        return True if True in fits else None if None in fits else False

    @property
    def reads(self) -> bool:
        """Whether it takes a look at a request to tell if it applies."""
        return self.methods is not None or self.paths is not None

    def in_words(self) -> str:
        """What it fits, such as ``example.org (GET /a/*)``."""
        host = _ANY if self.host == "*" else self.host
        parts = [" ".join(filter(None, [", ".join(self.methods or ()), ", ".join(self.paths or ())]))]
        if tuple(self.ports) != USUAL_PORTS:
            parts.append(f"port {', '.join(map(str, self.ports))}")
        details = "; ".join(filter(None, parts))
        return f"{host} ({details})" if details else host


def _check_path(glob: str) -> None:
    """Raise a ``ValueError`` for a glob that no path of a request can fit, or that is meant otherwise."""
    if not glob.startswith(("/", "*")):
        raise ValueError(f"a path begins with a slash: write {'/' + glob!a}")
    if "=" in glob.partition("?")[2]:
        raise ValueError(f"the query is no part of a path: write {glob.partition('?')[0]!a}")
    if (quoted := quote(glob, safe=_VISIBLE)) != glob:
        raise ValueError(f"a path has visible ASCII characters only: write {quoted!a}")
    sample = re.sub("[*?]", "x", glob)
    try:
        path_of(sample if glob.startswith("/") else f"/{sample}")
    except NameRefusedError as refused:
        raise ValueError(f"no request fits {glob!a}: {refused}") from None
    for escape in ESCAPE.findall(glob):
        if (char := seen(escape)) != escape:
            raise ValueError(f"a rule sees {escape} as {char}: write {f'[{char}]' if char in '*[' else char}")


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError:
        pass
    try:
        wide = ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!a} is no network: write one such as 10.0.0.0/8 or 10.1.2.3/32") from None
    raise ValueError(f"{text} is an address in a network: write {wide} for all of it")


def _parsed(networks: Sequence[str]) -> list[Network]:
    return [ip_network(network) for network in networks]


def _as_rule(value: Any) -> Any:
    return {"host": value, "decision": "allow"} if isinstance(value, str) else value


def _as_egress(value: Any) -> Any:
    if isinstance(value, str) and value != REPORT:
        raise ValueError(f"write a list, such as [{value}], or {REPORT} to have all that is asked for listed")
    return value


REPORT = "report"

Egress: TypeAlias = Annotated[
    list[Annotated[EgressRule, BeforeValidator(_as_rule, json_schema_input_type=EgressRule | str)]]
    | Literal["report"],
    BeforeValidator(_as_egress),
]
"""The rules of a sandbox, of which a text is a host that is allowed; or ``report``, which denies and lists all that is asked for."""


class Credential(BaseModel):
    """A key of this machine that requests to certain hosts get on their way out. The code never has it.

    It goes over TLS only, and never with TRACE or OPTIONS.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str
    """The variable of this machine with the key; in the sandbox, the variable with the placeholder."""
    hosts: list[str] = Field(min_length=1)
    """The names of the hosts that get it, each in full. A rule has to allow them, or to ask about them."""
    header: str = "Authorization: Bearer {value}"
    """The header of requests that holds it, with `{value}` in place of the key."""
    placeholder: str | None = None
    """What the code has in place of the key, for clients that send nothing without one. It is a shape such as
    `sk-********************`, where each star becomes a random letter or digit, or `jwt`. Default: the code has nothing, and
    the header is put in where a request has none."""

    @field_validator("name")
    @classmethod
    def _is_variable(cls, name: str) -> str:
        if _VARIABLE.fullmatch(name) is None:
            raise ValueError(f"{name!a} is no name of a variable: write one such as GITHUB_TOKEN")
        return name

    @field_validator("hosts")
    @classmethod
    def _are_names(cls, hosts: list[str]) -> list[str]:
        for text in hosts:
            if "*" in text:
                raise ValueError(f"a credential goes to hosts that are named in full, so not to {text!a}")
            if is_address(host_of(text)):
                raise ValueError(f"a credential goes to names, and {text} is an address")
        return [host_of(text) for text in hosts]

    @field_validator("header")
    @classmethod
    def _is_header(cls, header: str) -> str:
        found = _HEADER.fullmatch(header)
        if found is None or found["text"].count("{value}") != 1:
            raise ValueError("write a header with one {value}, such as 'Authorization: Bearer {value}'")
        name = found["name"].lower()
        if name in _OF_THE_CONNECTION or name.startswith("proxy-"):
            raise ValueError(f"{found['name']} is a header of the connection, and holds no key")
        return f"{found['name']}: {found['text']}"

    @field_validator("placeholder")
    @classmethod
    def _is_shape(cls, shape: str | None) -> str | None:
        if shape is None or shape == "jwt":
            return shape
        if _SHAPE.fullmatch(shape) is None:
            raise ValueError("write visible ASCII characters without blanks, such as 'sk-' and 20 stars")
        if (stars := shape.count("*")) < _FEWEST_STARS:
            raise ValueError(f"it has {stars} stars: write {_FEWEST_STARS} or more, or jwt")
        return shape

    @property
    def header_name(self) -> str:
        """The name of the header."""
        return self.header.partition(": ")[0]

    def header_text(self, value: str) -> str:
        """The text of the header with a value in it."""
        return self.header.partition(": ")[2].replace("{value}", value)


class Target(NamedTuple):
    """What is to be reached: a connection that is passed through has the method ``CONNECT`` and no path."""

    host: str
    port: int
    method: str = CONNECT
    path: str = ""

    def canonical(self) -> Target:
        """Return it as rules see it.

        Raises:
            NameRefusedError: If something in it is outside the grammar.
        """
        if self.method == CONNECT:
            if self.path:
                raise NameRefusedError(f"{CONNECT} has no path")
            return Target(host_of(self.host), self.port)
        return Target(host_of(self.host), self.port, method_of(self.method), path_of(self.path))


class EgressRules:
    """What the rules of a sandbox say, with counts of how often each has allowed something.

    Whatever is outside the grammar of names is denied before a rule is read.

    Args:
        rules: The rules. Without any, all is denied.
        credentials: Their hosts are opened.

    Attributes:
        exact_names: The names that stand in full in rules that allow or ask, in their order, each with its ports.

    Raises:
        SettingError: If a credential can go nowhere, or two of them are for the same variable, or for the same header.
    """

    def __init__(self, rules: Sequence[EgressRule], credentials: Sequence[Credential] = ()) -> None:
        self._rules = tuple(rules)
        self._chain = RuleChain[Target](self._rules, otherwise=Ruling("deny", NO_RULE))
        self._with_credential = {host for credential in credentials for host in credential.hosts}
        self._check(credentials)
        names: dict[str, list[int]] = {}
        for rule in self._rules:
            if rule.decision != "deny" and not rule.host.startswith("*") and not is_address(rule.host):
                ports = names.setdefault(rule.host, [])
                ports += [port for port in rule.ports if port not in ports]
        self.exact_names: Mapping[str, Sequence[int]] = names

    @classmethod
    def of(cls, egress: list[EgressRule] | Literal["report"], credentials: Sequence[Credential]) -> Self:
        """Make them of the settings of a sandbox; ``report`` denies all."""
        return cls((), ()) if egress == REPORT else cls(egress, credentials)

    def opens(self, host: str, port: int) -> bool:
        """Whether requests to a canonical host are read: a rule for it has methods or paths, or a credential has it."""
        return host in self._with_credential or any(rule.reads for _, rule in self._deciding(host, port))

    @property
    def opens_any(self) -> bool:
        """Whether requests to some host are read."""
        return bool(self._with_credential) or any(rule.reads for rule in self._rules)

    @property
    def asks_any(self) -> bool:
        """Whether a person is asked about some host."""
        return any(rule.decision == "ask" for rule in self._rules)

    @property
    def opens_all(self) -> bool:
        """Whether nothing is passed through as it is: each rule that allows or asks reads the requests."""
        return all(
            rule.reads or rule.decision == "deny" or rule.host in self._with_credential
            for rule in self._rules
        )

    def may_reach(self, host: str, port: int) -> Ruling | None:
        """Return a denial if no rule can allow or ask for anything there. This counts nothing."""
        try:
            host = host_of(host)
        except NameRefusedError as refused:
            return Ruling("deny", GRAMMAR, str(refused))
        ruling = self._unfitted(Target(host, port))
        for number, rule in self._deciding(host, port):
            if rule.decision != "deny":
                return None
            if not rule.reads:
                ruling = Ruling("deny", f"rule {number}", rule.reason or f"rule {number} denies it")
        return ruling

    def missing(self, host: str, port: int) -> str | None:
        """Return the entry, in YAML, that would allow a host for which there is no rule; ``None`` if there is, or can be none."""
        denial = self.may_reach(host, port)
        if denial is None or denial.by != NO_RULE:
            return None
        host = host_of(host)
        return None if is_address(host) and range_refusal_of(host, ()) else entry_for(host, port)

    def decide(self, target: Target) -> Ruling:
        """Apply the rules, and count if one allows it."""
        try:
            target = target.canonical()
        except NameRefusedError as refused:
            return Ruling("deny", GRAMMAR, str(refused))
        if target.method == CONNECT and self.opens(target.host, target.port):
            return Ruling(
                "deny", NO_RULE, f"requests to {target.host} are read, so nothing is passed through"
            )
        ruling = self._chain.decide(target)
        return self._unfitted(target) if ruling.by == NO_RULE else ruling

    def is_repeatable(self, ruling: Ruling) -> bool:
        """Whether the rule behind a ruling, which allows or asks, says that a request may be sent again."""
        return self._rules[int(ruling.by.rpartition(" ")[2]) - 1].repeatable

    def networks(self, host: str, port: int) -> Sequence[Network]:
        """Return the networks that the rules for a canonical host name."""
        return [network for _, rule in self._deciding(host, port) for network in _parsed(rule.networks)]

    def in_words(self) -> str:
        """Say for a model what may be reached."""
        allowed, denied, asked = (
            [rule.in_words() for rule in self._rules if rule.decision == decision]
            for decision in ("allow", "deny", "ask")
        )
        if not allowed and not asked:
            return "There is no network, including DNS."
        said = (
            [f"The network reaches {'' if _ANY in allowed else 'only '}{_listed(allowed)}"] if allowed else []
        )
        if asked:
            said.append(f"a person is asked about {_listed(asked)}")
        if denied := [words for words in denied if words != _ANY]:
            said.append(f"{_listed(denied)} will be denied")
        text = "; ".join(said)
        return f"{text[0].upper()}{text[1:]}."

    def _check(self, credentials: Sequence[Credential]) -> None:
        ports = {port for rule in self._rules for port in rule.ports}
        given = set[str]()
        for credential in credentials:
            for host in credential.hosts:
                if all(self.may_reach(host, port) for port in ports):
                    raise SettingError(
                        f"the credential {credential.name} goes to {host}, which no rule of 'egress' allows or asks about: "
                        f"add the rule {entry_for(host, 443)!r}"
                    )
            # what a request has already, or its placeholder, tells which one is meant
            headers = (
                []
                if credential.placeholder
                else [f"{credential.header_name.lower()} of {host}" for host in credential.hosts]
            )
            for taken in (credential.name, *headers):
                if taken in given:
                    raise SettingError(
                        f"two credentials are for {taken}: leave one out, or give it a placeholder"
                    )
                given.add(taken)

    def _deciding(self, host: str, port: int) -> Iterator[tuple[int, EgressRule]]:
        """The rules that may decide on something there, up to one that decides on all that is left."""
        for number, rule in enumerate(self._rules, start=1):
            if rule.is_for(host, port):
                yield number, rule
                if not rule.reads and rule.at_most is None:
                    return

    def _unfitted(self, target: Target) -> Ruling:
        """The ruling on what no rule fits."""
        host, port, method, _ = target
        if method != CONNECT and any(self._deciding(host, port)):
            return Ruling("deny", NO_RULE, f"no rule allows this request to {host}")
        open_ports = {
            port
            for rule in self._rules
            for port in rule.ports
            if rule.decision != "deny" and rule.is_for(host, port)
        }
        but = f", but port {_listed([str(port) for port in sorted(open_ports)])}" if open_ports else ""
        return Ruling("deny", NO_RULE, f"no rule allows {host} at port {port}{but}")


def entry_for(host: str, port: int) -> str:
    """Write the entry of ``egress`` that allows a canonical host at a port, as YAML."""
    name = host if _PLAIN_HOST.fullmatch(host) else f'"{host}"'
    return name if port in USUAL_PORTS else f"{{host: {name}, ports: [{port}], decision: allow}}"


def _listed(words: Sequence[str]) -> str:
    told = list(dict.fromkeys(words))
    more = [f"{len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []
    return ", ".join(told[:_MOST_TOLD] + more)
