"""Parameters as they are written: in a file, nested or with dotted keys, and after `-p`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from benchwright.errors import BadInput, Where
from benchwright.spec.source import (
    Document,
    KeyPath,
    NotFinite,
    parse_yaml,
    plain_scalar,
    refuse_unpassable,
)
from benchwright.spec.suggest import did_you_mean, one_of
from benchwright.spec.template import RUN_NAMES

_PARAMETER_PART = re.compile(r"[\w@:+/-]+")


def nested_params(params: Mapping[str, Any], document: Document) -> dict[str, Any]:
    """The parameters with dotted keys written out, every name and value one that can be used.

    Raises:
        BadInput: With the key.
    """
    nested: dict[str, Any] = {}
    _nest(params, (), nested, ("params",), document)
    return nested


def _nest(
    params: Mapping[str, Any],
    above: tuple[str, ...],
    nested: dict[str, Any],
    said: KeyPath,
    document: Document,
) -> None:
    for key, value in params.items():
        path = (*said, key)
        names = (*above, *str(key).split("."))
        for part in names:
            if not _PARAMETER_PART.fullmatch(part):
                raise BadInput(
                    f"`{key}` can't be the name of a parameter",
                    where=document.where(path),
                    expected="letters, digits and _ - @ : + /, in parts joined by dots",
                )
        if names[0] == "run":
            raise BadInput(
                "parameters below `run` would hide what is said of the run itself",
                where=document.where(path),
                expected=f"another name; taken are {', '.join(RUN_NAMES)}",
            )
        if isinstance(value, Mapping):
            _nest(value, names, nested, path, document)
            continue
        _check_value(value, path, document)
        here = nested
        for part in names[:-1]:
            below = here.setdefault(part, {})
            if not isinstance(below, dict):
                raise _twice(names, path, document)
            here = below
        if names[-1] in here:
            raise _twice(names, path, document)
        here[names[-1]] = value


def _twice(names: tuple[str, ...], path: KeyPath, document: Document) -> BadInput:
    return BadInput(
        f"the parameter `{'.'.join(names)}` stands twice, or below another parameter",
        where=document.where(path),
        expected="each parameter once",
    )


def _check_value(value: Any, path: KeyPath, document: Document) -> None:
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if not isinstance(part, str | int | float | bool | None):
            raise BadInput(
                "a list of a parameter has more than single values in it",
                where=document.where(path),
                expected="a list of texts, numbers, true and false",
            )


def flat_params(params: Any, above: str = "") -> dict[str, Any]:
    """The merged parameters by dotted name; none where `params` is no mapping yet."""
    found: dict[str, Any] = {}
    if not isinstance(params, Mapping):
        return found
    for key, value in params.items():
        if isinstance(value, Mapping):
            found |= flat_params(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def unknown_parameter(name: str, params: Collection[str], where: Where) -> BadInput:
    """The refusal of a name that is no parameter, with the nearest one."""
    below = [known for known in params if known.startswith(f"{name}.")]
    if below:
        return BadInput(
            f"`{name}` is a group of parameters, not one", where=where, expected=one_of(below)
        )
    return BadInput(
        f"`{name}` is no declared parameter",
        where=where,
        expected=one_of(params),
        hint=did_you_mean(name, params) or "declare it under `params:`",
    )


def option_value(text: str, before: Any, where: Where) -> Any:
    """The value of a `-p`: read as in a file, except that nothing after `=` is empty text.

    A text in quotes is what the quotes hold; a list is read where the parameter is one.

    Args:
        text: What follows the `=`.
        before: The parameter's value so far.
        where: The option, for an error.

    Raises:
        BadInput: The value can't be read, or handed to a program.
    """
    refuse_unpassable(text, where)
    if not text:
        return ""
    if isinstance(before, list) and text.startswith("["):
        try:
            value = parse_yaml(f"value: {text}\n").data["value"]
        except BadInput as error:
            raise BadInput(f"`{text}`: {error.what}", where=where, hint=error.hint) from None
        _check_value(value, (), Document(None, {}))
        return value
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        try:
            return parse_yaml(f"value: {text}\n").data["value"]
        except BadInput:
            return text  # quotes of the text's own, such as 'a' or 'b'
    try:
        return plain_scalar(text)
    except NotFinite:
        raise BadInput(
            f"`{text}` is not a finite number",
            where=where,
            expected="a finite number",
            hint=f"quote it, if the text itself is meant: -p '...=\"{text}\"'",
        ) from None
