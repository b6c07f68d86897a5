"""The docstrings under the fields of config models, which Python itself does not keep."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticOmit
from pydantic_core.core_schema import ModelSchema


class DescribedSchema(GenerateJsonSchema):
    """A JSON Schema that describes fields by their docstrings, and leaves out what only Python can set."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        described = super().model_schema(schema)
        docs = field_docs(schema["cls"])
        for name, field in described.get("properties", {}).items():
            if name in docs:
                field["description"] = docs[name]
        return described

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        raise PydanticOmit


# reading the sources of a model's fields takes some milliseconds, and each unknown key asks for it
@lru_cache(maxsize=64)
def described_schema(model: type[BaseModel]) -> Mapping[str, Any]:
    """The JSON Schema of a config model, with the docstrings of its fields."""
    return model.model_json_schema(schema_generator=DescribedSchema)


def field_docs(model: type[BaseModel]) -> Mapping[str, str]:
    """The docstring of each field that has one, on one line; those of a subclass replace those it inherits."""
    return {
        name: text
        for owner in reversed(model.__mro__)
        if issubclass(owner, BaseModel) and owner is not BaseModel
        for name, text in _own_docs(owner)
    }


def _own_docs(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    try:
        source = inspect.getsource(model)
    except OSError:  # made at run time, or shipped without source
        return
    definition = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(definition, ast.ClassDef)
    for field, doc in zip(definition.body, definition.body[1:], strict=False):
        match field, doc:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())
            case _:
                pass
