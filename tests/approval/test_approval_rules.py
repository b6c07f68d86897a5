"""Which rule decides, by what its globs fit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue, ValidationError

from codeact_team.core.rulings import LONGEST_MATCHED, Ruling
from codeact_team.tools.approval_rules import ApprovalRule, Question, approval_chain

Decision = str


class Config(BaseModel):
    approval: list[ApprovalRule]


def call(name: str, arguments: Mapping[str, JsonValue] | None = None) -> Question:
    return Question("helper", "tool", name, arguments or {})


def code(text: str) -> Question:
    return Question("helper", "code", "python", code=text)


def rule(**fields: Any) -> ApprovalRule:
    return ApprovalRule.model_validate(fields)


def decision(question: Question, *rules: ApprovalRule) -> str:
    return approval_chain(rules).decide(question).decision


def fits_by_definition(glob: str, text: str) -> bool:
    """The meaning of ``*`` and ``?``, one character at a time."""
    ends = {0}
    for char in glob:
        if char == "*":
            ends = set(range(min(ends), len(text) + 1)) if ends else set[int]()
        else:
            ends = {end + 1 for end in ends if end < len(text) and char in ("?", text[end])}
    return len(text) in ends


globs = st.text(alphabet="aAb.*?", min_size=1, max_size=8)
texts = st.text(alphabet="aAb.", max_size=8)
decisions = st.sampled_from(["allow", "deny", "ask"])
argument_rules = st.dictionaries(st.sampled_from("xy"), globs, max_size=2)
call_rules = st.builds(rule, tool=globs, arguments=argument_rules, decision=decisions)
code_rules = st.builds(rule, code=globs, decision=decisions)
rule_lists = st.lists(call_rules | code_rules, max_size=6)
calls = st.builds(call, texts, st.dictionaries(st.sampled_from("xyz"), texts, max_size=3))


def fits(rule: ApprovalRule, question: Question) -> bool:
    if question.kind == "code":
        return rule.code is not None and fits_by_definition(rule.code, question.code)
    return (
        rule.tool is not None
        and fits_by_definition(rule.tool, question.name)
        and all(
            name in question.arguments and fits_by_definition(glob, str(question.arguments[name]))
            for name, glob in rule.arguments.items()
        )
    )


@given(rule_lists, calls | st.builds(code, texts))
def test_the_first_rule_that_fits_decides(rules: list[ApprovalRule], question: Question):
    expected = next(
        ((rule.decision, f"rule {index + 1}") for index, rule in enumerate(rules) if fits(rule, question)),
        ("allow", "no rule"),
    )
    assert approval_chain(rules).decide(question)[:2] == expected


@given(rule_lists, st.lists(calls, max_size=12), st.integers(1, 3))
def test_each_rule_allows_so_often_and_what_no_later_rule_decides_is_denied(
    rules: list[ApprovalRule], questions: list[Question], at_most: int
):
    rules = [
        rule.model_copy(update={"at_most": at_most}) if rule.decision == "allow" else rule for rule in rules
    ]
    chain, used = approval_chain(rules), Counter[int]()
    for question in questions:
        assert chain.decide(question).decision == decided_by_hand(rules, question, used)
    assert all(count <= at_most for count in used.values())


def decided_by_hand(rules: Sequence[ApprovalRule], question: Question, used: Counter[int]) -> Decision:
    otherwise = "allow"
    for index, rule in enumerate(rules):
        if not fits(rule, question):
            continue
        if rule.at_most is None or used[index] < rule.at_most:
            used[index] += rule.decision == "allow"
            return rule.decision
        otherwise = "deny"
    return otherwise


@given(globs, texts, st.integers(0, 3), st.booleans())
def test_a_deny_rule_is_not_evaded_by_length(glob: str, text: str, place: int, is_code: bool):
    long = text[:place] + "b" * (LONGEST_MATCHED + 1) + text[place:]
    for denied in (text, long):
        question = code(denied) if is_code else call("t", {"x": denied})
        deny = rule(code=f"*{glob}*", decision="deny") if is_code else tool_rule("deny", x=f"*{glob}*")
        if denied is long or fits_by_definition(f"*{glob}*", denied):
            # a rule that a short text fits is not passed by a long one, and neither allows nor asks instead
            for before in ("allow", "ask"):
                other = rule(code="a*b", decision=before) if is_code else tool_rule(before, x="a*b")
                assert decision(question, deny) == "deny"
                assert denied is text or decision(question, other, deny) == "deny"


def tool_rule(decision: str, **arguments: str) -> ApprovalRule:
    return rule(tool="t", arguments=arguments, decision=decision)


def test_what_is_too_long_to_be_matched_is_denied_and_says_so():
    text = "x" * (LONGEST_MATCHED + 1)
    ruling = approval_chain([tool_rule("allow", text="x*")]).decide(call("t", {"text": text}))
    assert ruling == Ruling(
        "deny",
        "rule 1",
        "it cannot be checked against rule 1, which looks at a text of at most 100,000 characters: this one is longer, "
        "or nested too deeply",
    )
    assert decision(call("t", {"text": text[1:]}), tool_rule("allow", text="x*")) == "allow"


def test_a_long_text_is_no_trouble_where_it_is_not_looked_at():
    text = "x" * (LONGEST_MATCHED + 1)
    question = call("t", {"text": text, "path": "/tmp/a"})
    assert approval_chain([tool_rule("allow", text="*")]).decide(question).by == "rule 1"
    assert approval_chain([tool_rule("allow", path="/tmp/*")]).decide(question).by == "rule 1"
    assert approval_chain([tool_rule("deny", text="x*", path="/etc/*")]).decide(question).by == "no rule"
    assert (
        approval_chain([rule(tool="other", arguments={"text": "x*"}, decision="deny")]).decide(question).by
        == "no rule"
    )


def test_matching_takes_no_longer_for_hostile_text():
    # with backtracking this would take longer than the universe has existed
    glob = "*" + "a*" * 40 + "b"
    assert decision(code("a" * LONGEST_MATCHED), rule(code=glob, decision="deny")) == "allow"


@pytest.mark.parametrize(
    ("glob", "name", "expected"),
    [
        ("orders.*", "orders.refund", True),
        ("orders.*", "orders", False),
        ("orders", "orders.refund", False),
        ("Orders.*", "orders.refund", False),
        ("*.[gs]et_order", "orders.get_order", True),
        ("*.[!g]et_order", "orders.get_order", False),
        ("[", "[", True),
        ("get_order?", "get_orders", True),
    ],
)
def test_a_tool_is_meant_by_its_whole_name(glob: str, name: str, expected: bool):
    assert decision(call(name), rule(tool=glob, decision="deny")) == ("deny" if expected else "allow")


@pytest.mark.parametrize(
    ("glob", "value"),
    [
        ("A-*", "A-17"),
        ("17", 17),
        ("1.5", 1.5),
        ("true", True),
        ("null", None),
        ('[[]"a",1]', ["a", 1]),
        ('{"a":1,"b":{"c":"ü"}}', {"b": {"c": "ü"}, "a": 1}),
        ("*\n*", "two\nlines"),
        ('"[0-9]"', '"7"'),
    ],
)
def test_an_argument_is_matched_as_it_is_or_as_compact_json(glob: str, value: JsonValue):
    assert decision(call("t", {"x": value}), tool_rule("deny", x=glob)) == "deny"


def test_all_arguments_have_to_fit_and_a_missing_one_does_not():
    both = tool_rule("deny", x="1", y="*")
    assert decision(call("t", {"x": 1, "y": 2, "z": 3}), both) == "deny"
    assert decision(call("t", {"x": 2, "y": 2}), both) == "allow"
    assert decision(call("t", {"x": 1}), both) == "allow"


def test_a_value_that_has_no_json_text_is_denied_rather_than_passed():
    deep: JsonValue = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, 10**5_000):
        assert decision(call("t", {"x": value}), tool_rule("allow", x="1*")) == "deny"
        assert decision(call("t", {"x": value}), tool_rule("allow", x="*")) == "allow"


def test_rules_for_code_and_for_tools_do_not_mix():
    for_code, for_tools = rule(code="*", decision="deny"), rule(tool="*", decision="ask")
    assert decision(code("print(1)"), for_tools, for_code) == "deny"
    assert decision(call("print"), for_code, for_tools) == "ask"


def test_a_grant_that_is_used_up_says_so_unless_another_rule_decides():
    limited = rule(tool="get_order", decision="allow", at_most=2)
    chain = approval_chain([limited])
    assert [chain.decide(call("get_order")).decision for _ in range(3)] == ["allow", "allow", "deny"]
    assert chain.decide(call("get_order")).reason == "rule 1 allows this 2 times, which are used up"
    assert chain.decide(call("other")) == Ruling("allow", "no rule")
    chain.reset()
    assert chain.decide(call("get_order")).decision == "allow"
    chain = approval_chain([limited, rule(tool="*", decision="ask")])
    assert [chain.decide(call("get_order")).decision for _ in range(3)] == ["allow", "allow", "ask"]


@pytest.mark.parametrize(
    ("fields", "place", "said"),
    [
        ({"decision": "deny"}, (), "one of 'tool', 'code' and 'shell'"),
        ({"tool": "a", "code": "b", "decision": "deny"}, (), "one of 'tool', 'code' and 'shell'"),
        ({"code": "a", "shell": "b", "decision": "deny"}, (), "one of 'tool', 'code' and 'shell'"),
        (
            {"code": "a", "arguments": {"x": "1"}, "decision": "deny"},
            ("arguments",),
            "can be used with 'tool' only",
        ),
        (
            {"shell": "a", "arguments": {"x": "1"}, "decision": "deny"},
            ("arguments",),
            "can be used with 'tool' only",
        ),
        (
            {"tool": "a", "decision": "ask", "at_most": 2},
            ("at_most",),
            "can be used with 'decision: allow' only",
        ),
        ({"tool": "a", "decision": "allow", "at_most": 0}, ("at_most",), "greater than or equal to 1"),
        ({"tool": "a", "decision": "allow", "at_most": True}, ("at_most",), "valid integer"),
        ({"tool": "", "decision": "deny"}, ("tool",), "at least 1 character"),
        ({"tool": "a", "arguments": {"x": 1}, "decision": "deny"}, ("arguments", "x"), "valid string"),
        ({"tool": "a", "decision": "maybe"}, ("decision",), "'allow', 'deny' or 'ask'"),
        ({"tool": "a"}, ("decision",), "required"),
        ({"tool": "a", "decision": "deny", "agent": "b"}, ("agent",), "not permitted"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_by_its_place(
    fields: dict[str, Any], place: tuple[str, ...], said: str
):
    good = {"tool": "*", "decision": "ask"}
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"approval": [good, fields]})
    [problem] = caught.value.errors()
    assert problem["loc"] == ("approval", 1, *place)
    assert said in problem["msg"]


def test_rules_survive_a_dump_and_describe_themselves():
    text = json.dumps([rule(tool="a.*", arguments={"x": "1"}, decision="allow", at_most=3).model_dump()])
    assert json.loads(text)[0] == {
        "tool": "a.*",
        "code": None,
        "shell": None,
        "arguments": {"x": "1"},
        "decision": "allow",
        "reason": "",
        "at_most": 3,
    }
    assert [ApprovalRule(**fields).model_dump() for fields in json.loads(text)] == json.loads(text)
    assert all(field.description for field in ApprovalRule.model_fields.values())


def deciding(glob: str, value: JsonValue) -> str:
    """Whether a rule for this glob fits a value: one that denies, and one that allows what the next denies."""
    question = call("t", {"x": value})
    denied = decision(question, rule(tool="t", arguments={"x": glob}, decision="deny")) == "deny"
    allowed = (
        decision(
            question,
            rule(tool="t", arguments={"x": glob}, decision="allow"),
            rule(tool="*", decision="deny"),
        )
        == "allow"
    )
    return {(True, True): "fits", (False, False): "does not", (True, False): "in doubt"}[denied, allowed]


@pytest.mark.parametrize(
    ("glob", "value"),
    [
        ("100", 100),
        # passed a rule that denies 100, and was 100 for the tool
        ("100", 100.0),
        ("100.0", 100.0),
        ("0", -0.0),
        ("[[]100,1.5]", [100.0, 1.5]),
        ('{"n":1}', {"n": 1.0}),
        ("/data/*", "/data/x"),
        ("/data/*", "/data/./x//y/../z"),
        ("/data/*", "//data/x"),
        ("/data/*", "/data/"),
        ("./data/*", "./data/x"),
        ("data/*", "./data/x"),
        ("./data/*", "data/x"),
        ("*/etc/*", ["/etc/passwd"]),
        ("https://a.example/public/*", "https://a.example/public/x?path=/../y"),
    ],
)
def test_a_value_fits_in_any_notation(glob: str, value: JsonValue) -> None:
    assert deciding(glob, value) == "fits"


@pytest.mark.parametrize(
    ("glob", "value"),
    [
        ("100", 100.5),
        ("100", "100.0"),
        ("/data/*", "/data"),
        ("/data/*", "/etc/passwd"),
        ("data/*", "../data/x"),
        ("a b", "a  b"),
    ],
)
def test_other_values_do_not_fit(glob: str, value: JsonValue) -> None:
    assert deciding(glob, value) == "does not"


@pytest.mark.parametrize(
    ("glob", "value"),
    [
        ("/data/*", "/data/../etc/passwd"),
        ("/data/*", "/data//../../etc/passwd"),
        ("data/*", "data/../../etc/passwd"),
        ("/data/*", "/data/.."),
        ('*"/data/*', ["/data/../etc/passwd"]),
        ("data*", "data/../../etc/passwd"),
        ("https://a.example/public/*", "https://a.example/public/../admin"),
        ("https://a.example/public/*", "https://a.example/public/%2E%2e/admin"),
        # words, of which nothing is left as a path
        ("*DROP TABLE*", "DROP TABLE orders; -- /../x"),
    ],
)
def test_a_detour_neither_gets_past_what_denies_nor_into_what_allows(glob: str, value: JsonValue) -> None:
    assert deciding(glob, value) == "in doubt"


def test_a_detour_into_what_is_denied_is_denied() -> None:
    rules = [rule(tool="*", arguments={"x": "/etc/*"}, decision="deny"), rule(tool="*", decision="allow")]
    assert decision(call("t", {"x": "/data/../etc/passwd"}), *rules) == "deny"
    assert decision(call("t", {"x": "/etc/../data/x"}), *rules) == "deny"
    assert decision(call("t", {"x": "/data/x"}), *rules) == "allow"


@pytest.mark.parametrize(
    ("glob", "block", "restricts", "allows"),
    [
        ("rm *", "!ls\n!rm -rf a", True, False),
        ("git *", "!git status", True, True),
        ("git *", "!git status\n!git log", True, True),
        ("git *", "!git status\n!ls", True, False),
        ("git *", "!git status\nevil()", True, False),
        ("git *", "!git {evil()}", True, False),
        ("git *", "out = !git log", True, False),
        ("git *", "%%time\n!git log", True, False),
        ("git *", "%time !git log", True, False),
        ("ls", "%ls", True, True),
        ("*curl*", "%%bash\nls\ncurl x\n", True, True),
        ("*", "x = 1", False, False),
        ("*", '"""\n!ls\n"""', False, False),
        ("ls", "print('!ls')", False, False),
    ],
)
def test_a_rule_for_a_shell_sees_each_of_its_commands(
    glob: str, block: str, *, restricts: bool, allows: bool
) -> None:
    rest = rule(code="*", decision="deny")
    assert (decision(code(block), rule(shell=glob, decision="ask"), rest) == "ask") is restricts
    assert (decision(code(block), rule(shell=glob, decision="allow"), rest) == "allow") is allows


def test_a_rule_for_a_shell_sees_shell_blocks_whole_and_no_tools() -> None:
    asks = rule(shell="*curl*", decision="ask")
    assert decision(Question("helper", "code", "bash", code="ls\ncurl x"), asks) == "ask"
    assert decision(Question("helper", "code", "sh", code="ls"), asks) == "allow"
    assert decision(Question("helper", "code", "ruby", code="!curl"), asks) == "allow"
    assert decision(call("curl"), asks) == "allow"


@pytest.mark.parametrize("decided", ["ask", "allow"])
def test_a_command_that_is_too_long_to_be_matched_is_denied(decided: str) -> None:
    block = f"!{'a' * (LONGEST_MATCHED + 1)}"
    ruling = approval_chain([rule(shell="b*", decision=decided)]).decide(code(block))
    assert (ruling.decision, "cannot be checked against rule 1" in ruling.reason) == ("deny", True)
