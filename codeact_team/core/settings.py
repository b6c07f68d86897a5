"""Settings that are declared once: the fields of a config are also the parameters of the component's constructor."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import Any, Concatenate, ParamSpec, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, GetCoreSchemaHandler, GetPydanticSchema, ValidationError, ValidationInfo
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from codeact_team.core.providers import did_you_mean
from codeact_team.errors import SettingError

Instance = TypeVar("Instance")
Result = TypeVar("Result")
Config = TypeVar("Config", bound=BaseModel)
P = ParamSpec("P")

_FROM_CONSTRUCTOR = object()
"""The validation context while a constructor's arguments are read."""


def read_as(kind: Any) -> GetPydanticSchema:
    """Annotates a field that is checked and kept as ``kind``, whatever type callers see."""
    return GetPydanticSchema(lambda _, handler: handler(kind))


def in_config(kind: Any) -> GetPydanticSchema:
    """Annotates a field for a live object, which a config describes as ``kind``.

    A constructor takes any object that may behave as the annotated type, but no plain data in its place.
    """

    def schema(annotation: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)

        def validate(
            value: Any, as_kind: core_schema.ValidatorFunctionWrapHandler, info: ValidationInfo
        ) -> Any:
            if info.context is not _FROM_CONSTRUCTOR:
                return as_kind(value)
            if not any(_may_be(value, member) for member in members):
                words = [_in_words(member) for member in members]
                expected = " or ".join(dict.fromkeys(word for word in words if word))
                raise ValueError(f"{expected} is expected, not {type(value).__name__}")
            return value

        return core_schema.with_info_wrap_validator_function(validate, handler(kind))

    return GetPydanticSchema(schema)


_PLAIN = (str, bytes, int, float, list, tuple, Mapping)


def _may_be(value: object, member: Any) -> bool:
    kind = get_origin(member) or member
    if kind is Callable:
        return callable(value)
    if kind is Sequence:
        return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    # a field that takes a class says more of it than this could
    return (
        isinstance(value, kind)
        or kind is type
        or (kind not in (str, NoneType) and not isinstance(value, _PLAIN))
    )


def _in_words(member: Any) -> str:
    kind = get_origin(member) or member
    return _WORDS.get(kind, f"a {kind.__name__}")


_WORDS: Mapping[Any, str] = {
    NoneType: "",
    Callable: "a function",
    Sequence: "a list",
    str: "a text",
}


def takes_settings(
    config: Callable[P, Config],
) -> Callable[[Callable[[Instance, Config], None]], Callable[Concatenate[Instance, P], None]]:
    """Let a constructor that is given a config take the config's fields as keyword arguments instead.

    Type checkers and ``inspect.signature`` see them with their defaults. Fields that say ``kw_only=False`` may be given by
    position, too. ``None`` for a list or a mapping is an empty one, as in AutoGen's constructors. The constructor raises a
    :class:`SettingError` if a value is wrong, and a ``TypeError`` if no such setting.

    Args:
        config: The class of the config.
    """
    model = cast("type[Config]", config)
    fields = model.model_fields
    parameters = sorted((_parameter(*item) for item in fields.items()), key=lambda parameter: parameter.kind)
    signature = inspect.Signature(parameters)

    def decorate(init: Callable[[Instance, Config], None]) -> Callable[Concatenate[Instance, P], None]:
        @functools.wraps(init)
        def with_settings(self: Instance, *args: P.args, **settings: P.kwargs) -> None:
            check_names(init.__qualname__, settings, fields)
            given = signature.bind(*args, **settings).arguments
            for name in [name for name, value in given.items() if value is None]:
                if fields[name].default_factory is not None:
                    del given[name]
            with setting_errors():
                read = model.model_validate(given, context=_FROM_CONSTRUCTOR)
            init(self, read)

        owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        cast("Any", with_settings).__signature__ = signature.replace(parameters=[owner, *parameters])
        return with_settings

    return decorate


@contextmanager
def setting_errors() -> Generator[None]:
    """Turn an error of Pydantic into a :class:`SettingError` that names the settings."""
    try:
        yield
    except ValidationError as error:
        problems = [_problem(details) for details in error.errors(include_url=False)]
        raise SettingError("; ".join(problems)) from error


def suggests(function: Callable[P, Result]) -> Callable[P, Result]:
    """Decorates a function whose ``TypeError`` for an unknown argument names the most similar one."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> Result:
        check_names(function.__qualname__, given, known)
        return function(*args, **given)

    return checked


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD if field.kw_only is False else inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty
        if field.is_required()
        else field.get_default(call_default_factory=True),
        annotation=field.annotation,
    )


def check_names(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise a ``TypeError``, as Python does, for an argument that a function does not have, with the most similar one."""
    known = list(known)
    for name in given:
        if name not in known:
            raise TypeError(
                f"{function}() got an unexpected keyword argument {name!r}{did_you_mean(name, known)}"
            )


def field_docs(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the docstring of each field that has one, on one line. A subclass's replaces the one that it inherits."""
    return {
        name: text
        for owner in reversed(model.__mro__)
        if issubclass(owner, BaseModel) and owner is not BaseModel
        for name, text in attribute_docs(owner).items()
    }


def attribute_docs(kind: type) -> Mapping[str, str]:
    """The docstring of each field, or member, of a class at the top of a module, on one line; without those it inherits."""
    return _docs_of_module(kind.__module__).get(kind.__qualname__, {})


@functools.cache
def _docs_of_module(module: str) -> Mapping[str, Mapping[str, str]]:
    """The docstrings of the fields of each class at the top of a module."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):  # made at run time, or shipped without source
        return {}
    return {
        node.name: dict(_docs_in(node)) for node in ast.parse(source).body if isinstance(node, ast.ClassDef)
    }


def _docs_in(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, doc in zip(definition.body, definition.body[1:], strict=False):
        match field, doc:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())
            case _:
                pass


def _problem(details: Any) -> str:
    field, value = ".".join(map(str, details["loc"])), details["input"]
    match details["type"]:
        case "greater_than_equal":
            return f"{field} is {value}: it must be {details['ctx']['ge']} or more"
        case "greater_than" | "finite_number":
            return f"{field} is {value}: it must be a finite number above 0"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"{field}: no such setting"
        case _:
            message = details["msg"].removeprefix("Value error, ")
            return f"{field}: {message}" if field else message
