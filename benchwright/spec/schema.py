"""From plain data to a frozen model, with refusals that a person can act on.

Unknown keys are refused per file, before files are laid over each other, so that a refusal names
the file that said it. What pydantic finds afterwards is put into plain words here.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from benchwright.errors import BadInput, Where
from benchwright.spec.source import Document, KeyPath, dotted
from benchwright.spec.suggest import did_you_mean, one_of
from benchwright.spec.values import as_text

ModelT = TypeVar("ModelT", bound=BaseModel)
Locate = Callable[[KeyPath], Where]
"""Where a key path was said."""


def conform(document: Document, model: type[BaseModel], *, also: tuple[str, ...] = ()) -> Any:
    """The document's data in the form that `model` asks for, no value judged yet.

    A bare number or boolean where a text is asked for becomes the text as it was written:
    `env: {THREADS: 010}` means `010`.

    Args:
        document: What was read.
        model: What its top is to become.
        also: Keys that are allowed at the top beside the model's own.

    Raises:
        BadInput: An unknown key, with the nearest known one.
    """
    return _conform(document.data, model, (), document, also)


def build(model: type[ModelT], data: Mapping[str, Any], locate: Locate) -> ModelT:
    """Make the model; nothing is converted (`"5"` is no number, `yes` no boolean).

    Raises:
        BadInput: The first thing that is wrong, with its place in plain words.
    """
    try:
        # By way of JSON, since pydantic's strictness then still takes lists for tuples and words
        # for enumerations, as a file has to write them.
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise explain(error, model, data, locate) from None


def explain(error: ValidationError, model: type[BaseModel], data: Any, locate: Locate) -> BadInput:
    """Put pydantic's first finding into plain words, and say how many more there are."""
    findings = error.errors(include_url=False)
    first = findings[0]
    path = tuple(part for part in first["loc"] if isinstance(part, str | int))
    what, expected = _words(first, path, data)
    hint = None
    if first["type"] == "extra_forbidden":
        owner = _model_at(model, path[:-1])
        known = list(owner.model_fields) if owner is not None else []
        expected, hint = one_of(known), did_you_mean(str(path[-1]), known)
    elif isinstance(first["input"], dict | list) and first["type"] in ("string_type", "enum"):
        hint = "a text that begins with { or [ needs quotes"
    elif first["type"] in ("int_type", "float_type") and isinstance(first["input"], str):
        hint = "a number has no quotes, no unit, no leading zero, and a point for the decimals"
    elif first["type"] == "enum" and isinstance(first["input"], str):
        hint = did_you_mean(first["input"], _choices(first))
    if len(findings) > 1:
        more = f"{len(findings) - 1} more to correct after this one"
        hint = f"{hint}; {more}" if hint else more
    return BadInput(what, where=locate(path), expected=expected, hint=hint)


# --- the form of the data ----------------------------------------------------------------------


def _conform(
    value: Any, asked: Any, path: KeyPath, document: Document, also: tuple[str, ...] = ()
) -> Any:
    asked = _bare(asked)
    if isinstance(asked, type) and issubclass(asked, BaseModel):
        if not isinstance(value, Mapping):
            return value
        known = {name: field.annotation for name, field in asked.model_fields.items()}
        for key in value:
            if key not in known and key not in also:
                raise _unknown(key, [*known, *also], path, document)
        return {
            key: _conform(part, known.get(key, Any), (*path, key), document)
            for key, part in value.items()
        }
    origin, arguments = get_origin(asked), get_args(asked)
    if origin is tuple and isinstance(value, list | tuple):
        return [
            _conform(part, arguments[0], (*path, place), document)
            for place, part in enumerate(value)
        ]
    if origin is dict and isinstance(value, Mapping):
        return {
            key: _conform(part, arguments[1], (*path, key), document) for key, part in value.items()
        }
    if isinstance(asked, type) and issubclass(asked, str) and isinstance(value, bool | int | float):
        written = document.written(path)
        return as_text(value) if written is None else written
    return list(value) if isinstance(value, tuple) else value


def _bare(annotation: Any) -> Any:
    """The type that an annotation asks for, without `Annotated` and `| None`."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            parts = [part for part in get_args(annotation) if part is not type(None)]
            if len(parts) != 1:
                return Any
            annotation = parts[0]
        elif origin is Literal:
            return str
        else:
            return annotation


def _unknown(key: str, known: list[str], path: KeyPath, document: Document) -> BadInput:
    owner = f"`{dotted(path, document.data)}`" if path else "a configuration"
    return BadInput(
        f"`{key}` is no key of {owner}",
        where=document.where((*path, key)),
        expected=one_of(known),
        hint=did_you_mean(key, known),
    )


# --- pydantic's findings in plain words --------------------------------------------------------

_ASKED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "string_too_short": "some text",
}
"""What pydantic's error types ask for."""

_LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "of at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "of at most"),
}


def _words(finding: ErrorDetails, path: KeyPath, data: Any) -> tuple[str, str | None]:
    """What was wrong, and what was expected."""
    kind, context = finding["type"], finding.get("ctx", {})
    key = f"`{path[-1]}`" if path and isinstance(path[-1], str) else "this"
    if kind == "missing":
        return f"{key} is missing", None
    if kind == "extra_forbidden":
        owner = dotted(path[:-1], data)
        return f"{key} is no key of " + (f"`{owner}`" if owner else "a configuration"), None
    if kind == "value_error":
        return str(context.get("error", finding["msg"])), None
    found = _shown(finding["input"])
    if kind in _LIMITS:
        name, word = _LIMITS[kind]
        limit = context[name]
        limit = int(limit) if isinstance(limit, float) and limit.is_integer() else limit
        return f"{key} is {found}", f"a number {word} {limit}"
    if kind == "enum":
        return f"{key} is {found}", one_of(_choices(finding))
    if kind in _ASKED:
        return f"{key} is {found}", _ASKED[kind]
    return f"{key} is {found}: {finding['msg']}", None


def _choices(finding: ErrorDetails) -> list[str]:
    expected = str(finding.get("ctx", {}).get("expected", ""))
    return [word.strip(" '") for word in expected.replace(" or ", ",").split(",")]


def _shown(value: Any) -> str:
    """A value in an error, named by its kind where its text would be long or empty."""
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, str):
        return f"the text '{value}'" if len(value) <= 40 else "a long text"
    return as_text(value)


def _model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model that a key path leads to."""
    asked: Any = model
    for part in path:
        asked = _bare(asked)
        if isinstance(asked, type) and issubclass(asked, BaseModel):
            field = asked.model_fields.get(str(part))
            if field is None:
                return None
            asked = field.annotation
        elif get_args(asked):
            asked = get_args(asked)[0 if get_origin(asked) is tuple else 1]
    asked = _bare(asked)
    return asked if isinstance(asked, type) and issubclass(asked, BaseModel) else None
