"""Which rule decides on a host, a port and a request, and what is refused before any does."""

from __future__ import annotations

import json
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from codeact_team.config.yaml12 import parse_value
from codeact_team.core.rulings import Decision, Ruling
from codeact_team.network.names import NameRefusedError, host_of, path_of
from codeact_team.network.rules import Egress, EgressRule, EgressRules, Target, entry_for


class Settings(BaseModel):
    egress: Egress


def rules(*entries: Any) -> EgressRules:
    return EgressRules.of(Settings.model_validate({"egress": list(entries)}).egress, ())


def rule(host: str, decision: Decision = "allow", **fields: Any) -> dict[str, Any]:
    return {"host": host, "decision": decision, **fields}


def tunnel(egress: EgressRules, host: str, port: int = 443) -> str:
    return egress.decide(Target(host, port)).decision


def request(
    egress: EgressRules, method: str, path: str, host: str = "api.example.org", port: int = 443
) -> str:
    return egress.decide(Target(host, port, method, path)).decision


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        (
            "example.org",
            ["example.org", "EXAMPLE.org"],
            ["a.example.org", "badexample.org", "example.org.evil", "example.or"],
        ),
        (
            "*.example.org",
            ["a.example.org", "a.b.example.org", "A.Example.Org"],
            ["example.org", "badexample.org"],
        ),
        ("*.Example.ORG", ["a.example.org"], ["example.org"]),
        ("*", ["example.org", "intern", "203.0.113.7", "2001:db8::1"], []),
        ("203.0.113.7", ["203.0.113.7"], ["203.0.113.70", "7.113.0.203"]),
        ("2001:DB8:0::1", ["2001:db8::1", "2001:0db8::0:1"], ["2001:db8::11"]),
        ("münchen.de", ["xn--mnchen-3ya.de", "MÜNCHEN.de"], ["munchen.de"]),
        ("*.org", ["example.org"], ["org", "203.0.113.7"]),
    ],
)
def test_a_host_is_meant_in_whatever_letter_case_and_no_other_is(
    pattern: str, fitting: list[str], others: list[str]
) -> None:
    egress = rules(pattern)
    assert [tunnel(egress, host) for host in fitting] == ["allow"] * len(fitting)
    assert [tunnel(egress, host) for host in others] == ["deny"] * len(others)


@pytest.mark.parametrize(
    "host",
    [
        "evil\0.example.org",
        "evil%2eexample.org",
        "evil.example.org\r\n",
        "evil .example.org",
        "evil@a.example.org",
        "[a.example.org]",
        "a.example.org.",
        "evil/.example.org",
        "evil#.example.org",
        "evil\u3002example.org",
        "\u212a.example.org",
        "_.example.org",
        ".example.org",
        "0x7f.1",
        "localhost",
        "",
    ],
)
@pytest.mark.parametrize("decision", ["allow", "ask"])
def test_no_rule_sees_a_host_outside_the_grammar(host: str, decision: Decision) -> None:
    egress = rules(rule("*", decision), rule("*.example.org", decision))
    for ruling in (
        egress.decide(Target(host, 443)),
        egress.may_reach(host, 443),
        egress.decide(Target(host, 443, "GET", "/")),
    ):
        assert ruling is not None
        assert (ruling.decision, ruling.by) == ("deny", "grammar")
        assert ruling.reason


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/public/../admin"),
        ("GET", "/public/%2e%2e/admin"),
        ("GET", "/public/..%2fadmin"),
        ("GET", "/public//admin"),
        ("GET", "/public;/admin"),
        ("GET", "/public\\admin"),
        ("GET", "/public/\0"),
        ("GET", "/public/ä"),
        ("GET", "public/"),
        ("GET", ""),
        ("get", "/public/"),
        ("CONNECT", "/public/"),
        ("connect", ""),
        ("GET\r\nX: y", "/public/"),
    ],
)
def test_no_rule_sees_a_request_outside_the_grammar(method: str, path: str) -> None:
    egress = rules(rule("api.example.org", paths=["/public/*"]), rule("*"))
    assert egress.decide(Target("api.example.org", 443, method, path)).by == "grammar"


@given(
    st.text(max_size=12) | st.sampled_from(["a\0", "A.", "%2e", "1.1", "\u212a"]),
    st.text("/.;\\%2ef ab?#\0", max_size=8),
)
@example("a.example.org", "/a/../b")
def test_what_a_rule_allows_is_always_canonical(host: str, path: str) -> None:
    target = Target(host, 443, "GET", path)
    if rules("*").decide(target).decision == "allow":
        assert host_of(host_of(host)) == host_of(host)
        assert path_of(path_of(path)) == path_of(path)
    else:
        with pytest.raises(NameRefusedError):
            target.canonical()


labels = st.text("abAB-0", min_size=1, max_size=3).filter(
    lambda text: text[0] != "-" != text[-1] and not text.isdigit()
)
hosts = (
    st.lists(labels, min_size=1, max_size=4)
    .map(".".join)
    .filter(lambda text: not text.rpartition(".")[2].isdigit())
)
patterns = st.one_of(hosts, hosts.map(lambda text: f"*.{text}"), st.just("*"))
decisions = st.sampled_from(["allow", "deny", "ask"])


def is_meant(pattern: str, host: str) -> bool:
    parts, below = host.split("."), pattern.removeprefix("*.").split(".")
    if pattern.startswith("*."):
        return len(parts) > len(below) and parts[-len(below) :] == below
    return pattern in ("*", host)


@given(st.lists(st.tuples(patterns, decisions), max_size=5), hosts, st.booleans())
def test_the_first_rule_that_fits_decides_and_what_none_fits_is_denied(
    pairs: list[tuple[str, Decision]], host: str, is_upper: bool
) -> None:
    expected = next(
        (
            (decision, f"rule {number}")
            for number, (pattern, decision) in enumerate(pairs, start=1)
            if is_meant(pattern.lower(), host.lower())
        ),
        ("deny", "no rule"),
    )
    egress = rules(*(rule(pattern, decision) for pattern, decision in pairs))
    assert egress.decide(Target(host.upper() if is_upper else host, 443))[:2] == expected
    assert (egress.may_reach(host, 443) is not None) == (expected[0] == "deny")


def test_a_port_that_a_rule_does_not_name_is_denied_and_says_which_would_do() -> None:
    egress = rules("example.org", rule("db.example.org", ports=[5432]), rule("db.example.org", ports=[5433]))
    assert [tunnel(egress, "example.org", port) for port in (80, 443, 8080, 22)] == [
        "allow",
        "allow",
        "deny",
        "deny",
    ]
    assert [tunnel(egress, "db.example.org", port) for port in (443, 5432, 5433)] == [
        "deny",
        "allow",
        "allow",
    ]
    assert egress.decide(Target("db.example.org", 443)) == Ruling(
        "deny", "no rule", "no rule allows db.example.org at port 443, but port 5432, 5433"
    )
    assert egress.decide(Target("other.org", 443)).reason == "no rule allows other.org at port 443"


def test_methods_and_paths_have_to_fit_together() -> None:
    egress = rules(
        rule("api.example.org", methods=["GET", "HEAD"], paths=["/repos/*", "/user"]),
        rule("api.example.org", methods=["POST"], paths=["/graphql"], decision="ask"),
    )
    assert request(egress, "GET", "/repos/a/b") == "allow"
    assert request(egress, "HEAD", "/user?page=2") == "allow"
    assert request(egress, "POST", "/graphql") == "ask"
    for method, path in [
        ("POST", "/repos/a"),
        ("GET", "/graphql"),
        ("GET", "/user/"),
        ("GET", "/Repos/a"),
        ("DELETE", "/user"),
    ]:
        assert request(egress, method, path) == "deny"
    assert egress.decide(Target("api.example.org", 443, "DELETE", "/secret")).reason == (
        "no rule allows this request to api.example.org"
    )


def test_an_escape_neither_evades_a_denial_nor_breaks_a_permission() -> None:
    egress = rules(rule("api.example.org", "deny", paths=["/admin/*", "/users/@me"]), "api.example.org")
    for path in ("/admin/x", "/%61dmin/x", "/%61%64min/%78", "/users/@me", "/users/%40me", "/users/%40%6De"):
        assert request(egress, "GET", path) == "deny"
    assert request(egress, "GET", "/users/%C3%A4") == "allow"
    assert request(rules(rule("api.example.org", paths=["/a%20b/%C3%A4"])), "GET", "/a%20b/%c3%a4") == "allow"


def test_a_rule_allows_so_often_and_what_is_used_up_says_so() -> None:
    egress = rules(
        rule("api.example.org", paths=["/a"], at_most=2), rule("api.example.org", "ask", methods=["HEAD"])
    )
    assert [request(egress, "HEAD", "/a") for _ in range(3)] == ["allow", "allow", "ask"]
    assert egress.decide(Target("api.example.org", 443, "GET", "/a")).reason == (
        "rule 1 allows this 2 times, which are used up"
    )


def test_to_ask_whether_a_host_may_be_reached_counts_nothing() -> None:
    egress = rules(rule("api.example.org", paths=["/a"], at_most=1))
    assert [egress.may_reach("API.example.org", 443) for _ in range(3)] == [None] * 3
    assert [tunnel(egress, "api.example.org") for _ in range(3)] == ["deny"] * 3
    assert request(egress, "GET", "/a") == "allow"


def test_a_host_that_no_rule_can_ever_allow_is_denied_before_its_requests() -> None:
    egress = rules(
        rule("a.example.org", "deny", paths=["/x"]),
        rule("b.example.org", "deny", reason="not that one"),
        rule("b.example.org", methods=["GET"]),
        rule("c.example.org", "deny"),
    )
    denials = [egress.may_reach(f"{name}.example.org", 443) for name in "abcd"]
    assert denials == [
        Ruling("deny", "no rule", "no rule allows a.example.org at port 443"),
        Ruling("deny", "rule 2", "not that one"),
        Ruling("deny", "rule 4", "rule 4 denies it"),
        Ruling("deny", "no rule", "no rule allows d.example.org at port 443"),
    ]


def test_a_host_is_opened_by_rules_for_its_requests_as_far_as_they_can_decide() -> None:
    egress = rules(
        "passed.example.org",
        rule("limited.example.org", at_most=1),
        rule("read.example.org", "deny", paths=["/admin/*"]),
        "read.example.org",
        rule("*.example.org", methods=["GET"], ports=[443, 8443]),
    )
    opened = [
        ("read.example.org", 443),
        ("limited.example.org", 443),
        ("other.example.org", 443),
        ("passed.example.org", 8443),
    ]
    passed = [
        ("passed.example.org", 443),
        ("passed.example.org", 80),
        ("example.org", 443),
        ("other.example.org", 80),
    ]
    assert [egress.opens(*place) for place in opened] == [True] * 4
    assert [egress.opens(*place) for place in passed] == [False] * 4


def test_nothing_is_passed_through_to_a_host_whose_requests_are_read() -> None:
    egress = rules(rule("api.example.org", "deny", paths=["/admin/*"]), "api.example.org")
    assert egress.decide(Target("API.example.org", 443)) == Ruling(
        "deny", "no rule", "requests to api.example.org are read, so nothing is passed through"
    )
    assert request(egress, "GET", "/") == "allow"


def test_only_the_rules_that_decide_on_a_host_open_private_networks() -> None:
    egress = rules(
        rule("a.intern.example", networks=["10.0.0.0/8"]),
        rule("*.intern.example", "ask", networks=["192.168.1.0/24", "fd00::/8"], ports=[5432]),
        rule("*", networks=["172.16.0.0/12"]),
    )
    assert egress.networks("a.intern.example", 443) == [ip_network("10.0.0.0/8")]
    assert egress.networks("a.intern.example", 5432) == [ip_network("192.168.1.0/24"), ip_network("fd00::/8")]
    assert egress.networks("other.org", 443) == [ip_network("172.16.0.0/12")]
    assert egress.networks("other.org", 22) == []


def test_exact_names_that_may_be_reached_are_told_with_their_ports() -> None:
    egress = rules(
        "B.example.org",
        rule("db.example.org", ports=[5432]),
        rule("denied.example.org", "deny"),
        "*.example.org",
        "203.0.113.7",
        rule("b.example.org", "ask", ports=[443, 22]),
        rule("*", "ask"),
    )
    assert egress.exact_names == {"b.example.org": [80, 443, 22], "db.example.org": [5432]}
    assert list(egress.exact_names) == ["b.example.org", "db.example.org"]


def test_a_report_and_an_empty_list_deny_everything() -> None:
    for egress in (rules(), EgressRules.of(Settings.model_validate({"egress": "report"}).egress, ())):
        assert tunnel(egress, "example.org") == request(egress, "GET", "/") == "deny"
        assert egress.in_words() == "There is no network, including DNS."
        assert egress.exact_names == {}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (["pypi.org", "*.example.org"], "The network reaches only pypi.org, *.example.org."),
        (
            [
                rule("api.example.org", methods=["GET"], paths=["/repos/*", "/user"]),
                rule("db.example.org", ports=[5432]),
            ],
            "The network reaches only api.example.org (GET /repos/*, /user), db.example.org (port 5432).",
        ),
        (
            [rule("a.example.org", "deny"), "*.example.org", rule("*", "ask")],
            "The network reaches only *.example.org; a person is asked about any host; a.example.org will be denied.",
        ),
        ([rule("*", "ask")], "A person is asked about any host."),
        (["*"], "The network reaches any host."),
        ([rule("*", "deny")], "There is no network, including DNS."),
        ([rule("pypi.org"), rule("*", "deny")], "The network reaches only pypi.org."),
    ],
)
def test_a_model_is_told_what_may_be_reached(entries: list[Any], words: str) -> None:
    assert rules(*entries).in_words() == words


def test_a_model_is_not_told_of_a_thousand_hosts() -> None:
    words = rules(*(f"h{number}.example.org" for number in range(1_000))).in_words()
    assert words.endswith("h39.example.org, 960 more.")


@pytest.mark.parametrize(
    ("host", "port", "entry"),
    [
        ("pypi.org", 443, "pypi.org"),
        ("intern", 80, '"intern"'),
        ("2001:db8::1", 443, '"2001:db8::1"'),
        ("1.5e3", 443, '"1.5e3"'),
        ("null", 443, '"null"'),
        ("db.example.org", 5432, "{host: db.example.org, ports: [5432], decision: allow}"),
        ("203.0.113.7", 22, '{host: "203.0.113.7", ports: [22], decision: allow}'),
    ],
)
def test_the_entry_that_would_allow_something_does(host: str, port: int, entry: str) -> None:
    assert entry_for(host, port) == entry
    assert tunnel(rules(parse_value(entry)), host, port) == "allow"


@pytest.mark.parametrize(
    ("fields", "place", "said"),
    [
        ({"host": "https://pypi.org/"}, ("host",), "a host has no scheme and no path"),
        ({"host": "pypi.org:8080"}, ("host",), "a port is no part of a host"),
        ({"host": "pypi.org."}, ("host",), "leave out the dot at the end"),
        ({"host": ".pypi.org"}, ("host",), "write *.pypi.org for all names below pypi.org"),
        ({"host": "a.*.org"}, ("host",), "write *.example.org, not 'a.*.org'"),
        ({"host": "*pypi.org"}, ("host",), "write *.example.org"),
        ({"host": "**"}, ("host",), "write *.example.org"),
        ({"host": "*.203.0.113.7"}, ("host",), "nothing is below the address 203.0.113.7"),
        ({"host": ""}, ("host",), "it is empty"),
        ({"host": "*."}, ("host",), "it is empty"),
        ({"host": "localhost"}, ("host",), "the sandbox itself"),
        ({"host": "127.0.0.1"}, ("host",), "the sandbox itself"),
        (
            {"host": "10.1.2.3"},
            (),
            "10.1.2.3 is a private address: add networks: [10.1.2.3/32] if it is meant",
        ),
        (
            {"host": "169.254.169.254", "networks": ["169.254.0.0/16"]},
            (),
            "add networks: [169.254.169.254/32]",
        ),
        ({"host": "224.0.0.1"}, (), "224.0.0.1 is a multicast address, which no rule can open"),
        ({"methods": ["get"]}, ("methods",), "'get' is no method in capitals: write GET"),
        ({"methods": []}, ("methods",), "at least 1 item"),
        ({"methods": ["CONNECT"]}, ("methods",), "leave out 'methods'"),
        ({"paths": []}, ("paths",), "at least 1 item"),
        ({"paths": ["repos/*"]}, ("paths",), "a path begins with a slash: write '/repos/*'"),
        ({"paths": ["/search?q=*"]}, ("paths",), "the query is no part of a path: write '/search'"),
        ({"paths": ["/a/../*"]}, ("paths",), "only dots"),
        ({"paths": ["/a//b"]}, ("paths",), "two slashes"),
        ({"paths": ["/a%2fb"]}, ("paths",), "encoded slash"),
        ({"paths": ["/a b"]}, ("paths",), "write '/a%20b'"),
        ({"paths": ["/ä"]}, ("paths",), "write '/%C3%A4'"),
        ({"paths": ["/%61"]}, ("paths",), "a rule sees %61 as a: write a"),
        ({"paths": ["/%c3%a4"]}, ("paths",), "a rule sees %c3 as %C3: write %C3"),
        ({"paths": ["/%2a"]}, ("paths",), "a rule sees %2a as *: write [*]"),
        ({"ports": []}, ("ports",), "at least 1 item"),
        ({"ports": [0]}, ("ports", 0), "greater than or equal to 1"),
        ({"ports": [65536]}, ("ports", 0), "less than or equal to 65535"),
        ({"ports": ["443"]}, ("ports", 0), "valid integer"),
        ({"networks": ["10.1.2.3/8"]}, ("networks",), "write 10.0.0.0/8 for all of it"),
        ({"networks": ["intern"]}, ("networks",), "'intern' is no network"),
        ({"networks": ["10.0.0.0/8"], "decision": "deny"}, (), "goes with 'decision: allow' and 'ask' only"),
        ({"decision": "ask", "at_most": 2}, ("at_most",), "can be used with 'decision: allow' only"),
        ({"at_most": 0}, ("at_most",), "greater than or equal to 1"),
        ({"decision": "maybe"}, ("decision",), "'allow', 'deny' or 'ask'"),
        ({"path": "/a"}, ("path",), "not permitted"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_by_its_place_with_what_to_write(
    fields: dict[str, Any], place: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        EgressRule.model_validate({"host": "example.org", "decision": "allow", **fields})
    [problem] = refused.value.errors()
    assert problem["loc"] == place
    assert said in problem["msg"]


@pytest.mark.parametrize("egress", ["pypi.org", "Report"])
def test_one_host_that_is_no_list_is_refused_with_what_to_write(egress: str) -> None:
    with pytest.raises(ValidationError, match=rf"write a list, such as \[{egress}\], or report"):
        Settings.model_validate({"egress": egress})


def test_rules_survive_a_dump_and_describe_themselves() -> None:
    entries = [
        "PyPI.org",
        rule("api.example.org", methods=["GET"], paths=["/a/*"], at_most=3, reason="why", repeatable=True),
        rule("10.1.2.3", networks=["10.1.2.3"]),
    ]
    dumped = Settings.model_validate({"egress": entries}).model_dump(mode="json")
    assert dumped["egress"][0] == {
        "host": "pypi.org",
        "methods": None,
        "paths": None,
        "ports": [80, 443],
        "networks": [],
        "decision": "allow",
        "reason": "",
        "at_most": None,
        "repeatable": False,
    }
    assert dumped["egress"][2]["networks"] == ["10.1.2.3/32"]
    assert Settings.model_validate(json.loads(json.dumps(dumped))).model_dump(mode="json") == dumped
    assert all(field.description for field in EgressRule.model_fields.values())
    entry = Settings.model_json_schema()["properties"]["egress"]["anyOf"][0]["items"]
    assert entry == {"anyOf": [{"$ref": "#/$defs/EgressRule"}, {"type": "string"}]}


def test_the_entry_that_would_allow_a_host_is_told_only_where_no_rule_is_for_it() -> None:
    egress = rules("pypi.org", rule("evil.org", "deny"), rule("api.example.org", methods=["GET"]))
    assert egress.missing("Example.ORG", 443) == "example.org"
    assert egress.missing("db.example.org", 5432) == "{host: db.example.org, ports: [5432], decision: allow}"
    assert egress.missing("pypi.org", 8443) == "{host: pypi.org, ports: [8443], decision: allow}"
    for host in ("pypi.org", "evil.org", "api.example.org", "10.0.0.1", "a..b", "x\0y"):
        assert egress.missing(host, 443) is None
