"""Reading and writing YAML: plain data, with the line that each value was written on.

The meaning is that of YAML 1.2's core schema, narrowed where the schema would change what a
program receives: `010` is text here, because a number would reach it as `10`. Keys are always
text as written. What makes a file mean something else than it seems to say (duplicate keys,
merge keys, tags) is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from benchwright.errors import BadInput, Where
from benchwright.spec.values import Scalar

KeyPath = tuple[str | int, ...]
"""Keys and list positions (from 0) from the top of a document to a value."""

MAX_BYTES = 4_000_000
"""Largest file that is read; more is data, not a configuration."""
MAX_DEPTH = 50
"""Deepest nesting that is read."""
MAX_VALUES = 20_000
"""Values in a document, aliases written out: an alias of aliases grows exponentially."""

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
MAX_DIGITS = 4000
"""Longer numbers stay text (Python's own limit for reading one is 4300 digits)."""


class NotFinite(ValueError):
    """A number that is no finite number: `.nan`, `.inf`, `1e999`."""


def plain_scalar(text: str) -> Scalar:
    """What an unquoted scalar means. Source: YAML 1.2.2, section 10.3.2 (core schema).

    Numbers with a leading zero (`010`, `007.5`) stay text, as do `on`, `no`, `12:30`, `1_000`.

    Raises:
        NotFinite: A number that isn't finite.
    """
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if len(text) > MAX_DIGITS:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEX.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if not math.isfinite(number):
            raise NotFinite(text)
        return number
    if _NOT_FINITE.fullmatch(text):
        raise NotFinite(text)
    return text


def dotted(path: KeyPath, data: Any = None) -> str:
    """A key path as people read it: `stages.search.metrics_from.fields[0]`.

    An element of a list goes by its `name`, where `data` has one for it, else by its position.
    """
    text = ""
    for part in path:
        if isinstance(data, list) and isinstance(part, int):
            data = data[part] if 0 <= part < len(data) else None
            name = data.get("name") if isinstance(data, Mapping) else None
            text += f".{name}" if isinstance(name, str) and name else f"[{part}]"
            continue
        data = data.get(part) if isinstance(data, Mapping) else None
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


@dataclass(frozen=True)
class Document:
    """What a file says, and where.

    Attributes:
        file: The file; None for data that came from no file.
        data: Its content: mappings with text keys, lists and scalars.
        lines: The line of each key path, from 1.
        texts: Unquoted scalars that aren't text, as they were written, by key path.
    """

    file: Path | None
    data: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    texts: dict[KeyPath, str] = field(default_factory=dict)

    def where(self, key: KeyPath | str) -> Where:
        """The place of a key; of the nearest key above it, where the document lacks it."""
        path = self.path(key) if isinstance(key, str) else key
        line = None
        for length in range(len(path), -1, -1):
            line = self.lines.get(path[:length])
            if line is not None:
                break
        name = dotted(path, self.data) if path else ""
        return Where(file=self.file, line=line, key=name or None)

    def path(self, key: str) -> KeyPath:
        """The key path of a dotted name; a path of its parts, where the document lacks it."""
        if key in self._by_name:
            return self._by_name[key]
        parent, _, last = key.rpartition(".")
        return (*self.path(parent), last) if parent else (last,)

    @cached_property
    def _by_name(self) -> dict[str, KeyPath]:
        """The first key path of each dotted name."""
        return {dotted(path, self.data): path for path in reversed(self.lines)}

    def written(self, path: KeyPath) -> str | None:
        """The scalar's text as its author wrote it; None where it is no unquoted scalar."""
        return self.texts.get(path)


def read_yaml(path: Path | str) -> Document:
    """Read a YAML file whose top is a mapping.

    Raises:
        BadInput: The file can't be read, isn't YAML, or uses what would make it mean something
            else than it seems to say; with file and line.
    """
    path = Path(path)
    return parse_yaml(_read(path), file=path)


def parse_yaml(text: str, file: Path | None = None) -> Document:
    """Read a YAML text whose top is a mapping; see `read_yaml`."""
    top = _compose(text, file)
    if top.kind != "map":
        raise BadInput(
            f"the top of the file is {_KINDS[top.kind]}",
            where=Where(file, top.line),
            expected="a mapping, such as `domain: command`",
        )
    builder = _Builder(file)
    data = builder.build(top, ())
    return Document(file, cast("dict[str, Any]", data), builder.lines, builder.texts)


@dataclass(frozen=True)
class _Written(Document):
    """A document that is read for its lines only where a fault has to name its place."""

    text: str = ""

    def where(self, key: KeyPath | str) -> Where:
        return parse_yaml(self.text, self.file).where(key)


def written(data: dict[str, Any], text: str, file: Path | None = None) -> Document:
    """A document whose data is known already, from a text that `dump_yaml` wrote of it."""
    return _Written(file, data, text=text)


def as_document(data: Mapping[str, Any]) -> Document:
    """Take data that came from no file, such as a deployment's parameter, for a document.

    Raises:
        BadInput: A value that a file couldn't hold, with its key.
    """
    return Document(None, cast("dict[str, Any]", _checked(data, ())))


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Write plain data as YAML in block style, such that `parse_yaml` gives it back.

    Text that a reader of YAML 1.1 or 1.2 would take for something else is quoted.
    """
    import yaml

    text: str = yaml.dump(
        _plain(data),
        Dumper=_dumper(),
        default_flow_style=False,
        allow_unicode=True,
        width=2**31 - 1,
        sort_keys=False,
    )
    return text


def parse_written(text: str, file: Path | None = None) -> Document:
    """Read a text that `dump_yaml` wrote: the same as `parse_yaml`, several times as fast.

    What `dump_yaml` writes means the same to readers of YAML 1.1 and 1.2, so libyaml can read it.
    The document finds its lines when it is asked for a place.

    Raises:
        BadInput: As `parse_yaml`, which has the last word on a text that libyaml can't read.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", None)
    if loader is not None:
        try:
            data = yaml.load(text, Loader=loader)
        except (yaml.YAMLError, ValueError):
            data = None
        if isinstance(data, dict):
            return _Written(file, data, text=text)
    return parse_yaml(text, file)


def refuse_unpassable(text: str, where: Where) -> None:
    """Refuse a text that no program can be handed: with a NUL, or half of a surrogate pair."""
    for character in text:
        if character == "\0" or "\ud800" <= character <= "\udfff":
            raise BadInput(
                f"the character U+{ord(character):04X} can't be handed to a program",
                where=where,
                expected="text in UTF-8",
            )


def _checked(value: Any, path: KeyPath) -> Any:
    """A copy in mappings with text keys, lists and scalars."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise BadInput(f"the key {key!r} is no text", where=Where(key=dotted(path)))
        return {str(key): _checked(part, (*path, str(key))) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_checked(part, (*path, place)) for place, part in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise BadInput(
            f"{value} is not a finite number",
            where=Where(key=dotted(path)),
            expected="a finite number",
        )
    if isinstance(value, str):
        refuse_unpassable(value, Where(key=dotted(path)))
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise BadInput(
        f"a value of the type {type(value).__name__} can't stand in a configuration",
        where=Where(key=dotted(path)),
        expected="texts, numbers, true and false, null, lists and mappings",
    )


# --- reading -----------------------------------------------------------------------------------

_KINDS = {"map": "a mapping", "list": "a list", "scalar": "a single value"}


def _read(path: Path) -> str:
    where = Where(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise BadInput("there is no such file", where=where) from None
    except IsADirectoryError:
        raise BadInput("this is a folder", where=where, expected="a YAML file") from None
    except OSError as error:
        raise BadInput(f"can't be read: {error.strerror}", where=where) from None
    if len(raw) > MAX_BYTES:
        raise BadInput(
            f"the file has {len(raw):,} bytes",
            where=where,
            expected=f"a configuration of at most {MAX_BYTES:,} bytes",
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadInput(
            f"byte 0x{raw[error.start]:02x} is not UTF-8",
            where=Where(path, line),
            expected="a text file in UTF-8",
            hint=f"convert it: iconv -f latin1 -t utf-8 {path.name}",
        ) from None


@dataclass(slots=True, eq=False)
class _Node:
    """A value as written: `value` is text, a list of nodes, or a list of (key, value) nodes."""

    kind: str
    value: Any
    line: int
    plain: bool = False


def _compose(text: str, file: Path | None) -> _Node:
    """The text's one document as nodes; aliases are the same node twice."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return _Composer(YAML(typ="safe", pure=True).parse(text), file).document()
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else None
        raise _not_yaml(error.problem or str(error.context), Where(file, line)) from None
    except YAMLError as error:
        position = getattr(error, "position", None)
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else None
        character = getattr(error, "character", None)
        if isinstance(character, int):
            what = f"the character U+{character:04X} is not allowed in YAML"
        elif isinstance(character, str) and character:
            what = f"the character U+{ord(character[0]):04X} is not allowed in YAML"
        else:
            what = f"not valid YAML: {error}"
        raise BadInput(what, where=Where(file, line)) from None


def _not_yaml(problem: str, where: Where) -> BadInput:
    if "'\\t'" in problem:
        return BadInput("a tab is used to indent", where=where, expected="spaces")
    hint = None
    if "cannot start any token" in problem:
        hint = "put the value into quotes: a plain one can't begin with @, ` or %"
    elif "mapping values are not allowed" in problem:
        hint = "check the indentation; a text with `: ` in it needs quotes"
    elif "expected <block end>" in problem or "could not find expected ':'" in problem:
        hint = "check the indentation, and that every quote is closed"
    elif "while scanning a quoted scalar" in problem or "end of stream" in problem:
        hint = "a quote is opened and not closed"
    return BadInput(f"not valid YAML: {problem}", where=where, hint=hint)


class _Composer:
    """Turns ruamel's events into nodes, one document only."""

    def __init__(self, events: Iterator[Any], file: Path | None) -> None:
        self.events = events
        self.file = file
        self.anchors: dict[str, _Node] = {}

    def document(self) -> _Node:
        top: _Node | None = None
        for event in self.events:
            name = type(event).__name__
            if name == "DocumentStartEvent":
                if top is not None:
                    raise BadInput(
                        "a second document begins here",
                        where=self.where(event),
                        expected="one document in the file",
                    )
                if event.version not in (None, (1, 2)):
                    raise BadInput(
                        f"the file says it is YAML {'.'.join(map(str, event.version))}",
                        where=self.where(event),
                        expected="YAML 1.2",
                        hint="remove the %YAML line; `on`, `no` and `010` are text then",
                    )
                top = self.node(next(self.events), 0)
        if top is None:
            raise BadInput(
                "the file is empty",
                where=Where(self.file),
                expected="a mapping, such as `domain: command`",
            )
        if top.kind == "scalar" and top.plain and top.value == "":
            raise BadInput(
                "the file says nothing",
                where=Where(self.file),
                expected="a mapping, such as `domain: command`",
            )
        return top

    def node(self, event: Any, depth: int) -> _Node:
        name = type(event).__name__
        line = event.start_mark.line + 1
        if name == "AliasEvent":
            if event.anchor not in self.anchors:
                raise BadInput(
                    f"the alias `*{event.anchor}` names no anchor above it", where=self.where(event)
                )
            return self.anchors[event.anchor]
        if event.ctag is not None:
            raise BadInput(
                f"the tag `{event.ctag}` is not allowed",
                where=self.where(event),
                expected="plain values; quotes make a text of a value",
            )
        if depth > MAX_DEPTH:
            raise BadInput(f"nested deeper than {MAX_DEPTH} levels", where=self.where(event))
        if name == "ScalarEvent":
            node = _Node("scalar", event.value, line, plain=bool(event.implicit[0]))
            self.remember(event, node)
            return node
        node = _Node("map" if name == "MappingStartEvent" else "list", [], line)
        self.remember(event, node)
        children: list[_Node] = []
        while not type(following := next(self.events)).__name__.endswith("EndEvent"):
            children.append(self.node(following, depth + 1))
        if node.kind == "map":
            node.value = list(zip(children[::2], children[1::2], strict=True))
        else:
            node.value = children
        return node

    def remember(self, event: Any, node: _Node) -> None:
        if event.anchor is not None:
            self.anchors[event.anchor] = node

    def where(self, event: Any) -> Where:
        return Where(self.file, event.start_mark.line + 1)


class _Builder:
    """Turns nodes into plain data, writing down the line of every key path."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.lines: dict[KeyPath, int] = {}
        self.texts: dict[KeyPath, str] = {}
        self.count = 0
        self.open: list[_Node] = []

    def build(self, node: _Node, path: KeyPath) -> Any:
        self.lines.setdefault(path, node.line)
        self.count += 1
        if self.count > MAX_VALUES:
            raise BadInput(
                f"the file has more than {MAX_VALUES:,} values, its aliases written out",
                where=Where(self.file, node.line),
            )
        if node.kind == "scalar":
            return self.scalar(node, path)
        if node in self.open or len(self.open) > MAX_DEPTH:
            raise BadInput(
                "an alias stands inside the value that it names"
                if node in self.open
                else f"nested deeper than {MAX_DEPTH} levels, aliases written out",
                where=self.where(path, node.line),
            )
        self.open.append(node)
        data: Any
        if node.kind == "list":
            data = [self.build(child, (*path, place)) for place, child in enumerate(node.value)]
        else:
            data = self.mapping(node, path)
        self.open.pop()
        return data

    def mapping(self, node: _Node, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key, value in node.value:
            name = self.key(key, path)
            if name in data:
                raise BadInput(
                    f"the key `{name}` stands twice, first on line {first[name]}",
                    where=self.where((*path, name), key.line),
                    expected="each key once",
                    hint="remove one of the two",
                )
            first[name] = key.line
            self.lines[(*path, name)] = key.line
            data[name] = self.build(value, (*path, name))
        return data

    def key(self, key: _Node, path: KeyPath) -> str:
        if key.kind != "scalar":
            raise BadInput(
                f"a key is {_KINDS[key.kind]}",
                where=self.where(path, key.line),
                expected="a word",
                hint="a value that begins with { or [ needs quotes",
            )
        if key.plain and key.value == "<<":
            raise BadInput(
                "the merge key `<<` is not part of YAML 1.2",
                where=self.where((*path, "<<"), key.line),
                expected="each value written out (anchors and aliases for whole values are fine)",
            )
        if key.value == "":
            raise BadInput("a key is empty", where=self.where(path, key.line), expected="a word")
        return self.text(key, path)

    def scalar(self, node: _Node, path: KeyPath) -> Scalar:
        if not node.plain:
            return self.text(node, path)
        try:
            value = plain_scalar(node.value)
        except NotFinite:
            raise BadInput(
                f"`{node.value}` is not a finite number",
                where=self.where(path, node.line),
                expected="a finite number",
                hint="quote it, if the text itself is meant",
            ) from None
        if isinstance(value, str):
            return self.text(node, path)
        self.texts[path] = node.value
        return value

    def text(self, node: _Node, path: KeyPath) -> str:
        text = cast("str", node.value)
        refuse_unpassable(text, self.where(path, node.line))
        return text

    def where(self, path: KeyPath, line: int) -> Where:
        return Where(self.file, line, dotted(path) or None)


# --- writing -----------------------------------------------------------------------------------

_OTHER_IN_YAML_1_1 = re.compile(
    r"""y|n|yes|no|on|off|true|false|null|~|=|<<|
    |[-+]?[0-9][0-9_,]*(:[0-5]?[0-9])*(\.[0-9_]*)?
    |[-+]?0[box][0-9a-f_]+
    |[-+]?[0-9_.]*(e[-+]?[0-9]+)?
    |[-+]?\.(inf|nan)
    |[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
"""Plain text that a reader of either version takes for no text. Source: yaml.org/type."""

_ESCAPED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
"""Characters that readers drop, or take for the end of a line."""


def _plain(data: Any) -> Any:
    """Copies, so that the writer finds no object twice and makes no anchors."""
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, str):
        return str(data)
    return data


def _dumper() -> Any:
    """libyaml's writer where PyYAML has it: it is ten times as fast as the one in Python."""
    import yaml

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]
        """Quotes what another reader could mistake; block style for several lines."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

        def represent_text(self, data: str) -> Any:
            style = None
            if _ESCAPED.search(data):
                style = '"'
            elif "\n" in data:
                ragged = data[0].isspace() or re.search(r"\s(\n|$)", data.rstrip("\n"))
                style = '"' if ragged else "|"
            elif _OTHER_IN_YAML_1_1.fullmatch(data):
                style = "'"
            return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

        def represent_number(self, data: float) -> Any:
            text = repr(data)
            if "e" in text and "." not in text:
                # YAML 1.1 asks for a point in a number with an exponent.
                text = text.replace("e", ".0e")
            return self.represent_scalar("tag:yaml.org,2002:float", text)

    Dumper.add_representer(str, Dumper.represent_text)
    Dumper.add_representer(float, Dumper.represent_number)
    return Dumper
