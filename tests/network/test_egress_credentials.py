"""Which credentials there can be, and where they can go."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from codeact_team.errors import SettingError
from codeact_team.network.rules import Credential, EgressRule, EgressRules, Target

ALLOWED = EgressRule(host="*.example.org", decision="allow")


def credential(**fields: Any) -> Credential:
    return Credential.model_validate({"name": "TOKEN", "hosts": ["api.example.org"], **fields})


def test_a_credential_has_its_hosts_opened_and_no_others() -> None:
    egress = EgressRules([ALLOWED], [credential(hosts=["API.example.org"])])
    assert egress.opens("api.example.org", 443)
    assert not egress.opens("other.example.org", 443)
    assert egress.decide(Target("api.example.org", 443)).decision == "deny"
    assert egress.decide(Target("api.example.org", 443, "GET", "/")).decision == "allow"


def test_the_header_is_written_with_a_value() -> None:
    assert (credential().header_name, credential().header_text("k{value}")) == (
        "Authorization",
        "Bearer k{value}",
    )
    other = credential(header="x-api-key:{value}")
    assert (other.header, other.header_name, other.header_text("k")) == (
        "x-api-key: {value}",
        "x-api-key",
        "k",
    )


@pytest.mark.parametrize(
    ("rules", "host"),
    [
        ([], "api.example.org"),
        ([ALLOWED], "example.org"),
        ([EgressRule(host="api.example.org", decision="deny"), ALLOWED], "api.example.org"),
    ],
)
def test_a_credential_that_can_go_nowhere_is_refused_with_the_rule_that_it_needs(
    rules: list[EgressRule], host: str
) -> None:
    with pytest.raises(SettingError, match=rf"TOKEN goes to {host}, which no rule .* add the rule '{host}'"):
        EgressRules(rules, [credential(hosts=[host])])


def test_a_host_that_a_person_is_asked_about_may_have_a_credential() -> None:
    asked = EgressRule(host="api.example.org", methods=["GET"], decision="ask")
    assert EgressRules([asked], [credential()]).opens("api.example.org", 443)


def test_two_credentials_are_told_apart_by_their_variables_and_headers() -> None:
    other = credential(name="OTHER", header="authorization: token {value}")
    with pytest.raises(SettingError, match=r"two credentials are for authorization of api\.example\.org"):
        EgressRules([ALLOWED], [credential(), other])
    with pytest.raises(SettingError, match="two credentials are for TOKEN"):
        EgressRules([ALLOWED], [credential(), credential(hosts=["b.example.org"])])
    shaped = credential(name="OTHER", placeholder="sk-" + "*" * 20)
    assert EgressRules([ALLOWED], [credential(), shaped]).opens("api.example.org", 443)


@pytest.mark.parametrize("placeholder", [None, "jwt", "sk-proj-" + "*" * 40])
def test_a_placeholder_has_a_shape(placeholder: str | None) -> None:
    assert credential(placeholder=placeholder).placeholder == placeholder


@pytest.mark.parametrize(
    ("fields", "place", "said"),
    [
        ({"name": "MY-TOKEN"}, ("name",), "'MY-TOKEN' is no name of a variable"),
        ({"name": "A=b"}, ("name",), "no name of a variable"),
        ({"hosts": []}, ("hosts",), "at least 1 item"),
        ({"hosts": ["*.example.org"]}, ("hosts",), "named in full"),
        ({"hosts": ["*"]}, ("hosts",), "named in full"),
        ({"hosts": ["203.0.113.7"]}, ("hosts",), "is an address"),
        ({"hosts": ["https://api.example.org"]}, ("hosts",), "no scheme and no path"),
        ({"header": "Authorization"}, ("header",), "write a header with one {value}"),
        ({"header": "Authorization: Bearer {key}"}, ("header",), "write a header with one {value}"),
        ({"header": "Authorization: {value}{value}"}, ("header",), "write a header with one {value}"),
        ({"header": "Authorization: {value}\r\nX: y"}, ("header",), "write a header with one {value}"),
        ({"header": "Author ization: {value}"}, ("header",), "write a header with one {value}"),
        ({"header": "{value}: x"}, ("header",), "write a header with one {value}"),
        ({"header": "Host: {value}"}, ("header",), "a header of the connection"),
        ({"header": "Proxy-Authorization: {value}"}, ("header",), "a header of the connection"),
        ({"placeholder": "sk-***"}, ("placeholder",), "it has 3 stars: write 16 or more"),
        ({"placeholder": "sk-" + "*" * 20 + "\n"}, ("placeholder",), "visible ASCII"),
        ({"placeholder": ""}, ("placeholder",), "visible ASCII"),
        ({"value": "secret"}, ("value",), "not permitted"),
    ],
)
def test_a_credential_that_cannot_work_is_refused_by_its_place_with_what_to_write(
    fields: dict[str, Any], place: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        credential(**fields)
    [problem] = refused.value.errors()
    assert problem["loc"] == place
    assert said in problem["msg"]


def test_credentials_survive_a_dump_and_describe_themselves() -> None:
    dumped = credential(placeholder="jwt").model_dump(mode="json")
    assert Credential.model_validate(dumped).model_dump(mode="json") == dumped
    assert all(field.description for field in Credential.model_fields.values())
