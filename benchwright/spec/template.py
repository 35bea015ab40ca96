"""Templates: `{name}` in a command, replaced so that the value reaches the program byte for byte.

One literal pass over the text: a name in braces is replaced where it is declared, and all else in
braces stays (JSON, awk, `${VAR}`, `{a,b}`). What is put in is never looked at again. In a shell
command a value is quoted for the place where it stands, and so the pass follows bash's quoting.
Where bash's quoting can't be followed with certainty, or a value can't be quoted (in `${...}`, in
a here-document), the template is refused rather than guessed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from benchwright.errors import BadInput, Where
from benchwright.spec.suggest import MEANT, nearest, one_of

RUN_NAMES = ("run.id", "run.dir", "run.seed", "run.arm", "run.replicate", "run.block")
"""What a template can say of the run itself."""

_PLACEHOLDER = re.compile(r"\{([\w.@:+/-]+)(!raw)?\}")
_DOLLAR = re.compile(r"\$\{(\w+(?:\.[\w@-]+)+)\}")
_LIKE_A_NAME = re.compile(r"[^\W\d][\w@-]*(\.[\w@-]+)*")


class Context(StrEnum):
    """What a placeholder stands in, as bash reads it."""

    PLAIN = "plain text"
    OUTSIDE = "outside quotes"
    SINGLE = "single quotes"
    DOUBLE = "double quotes"
    ANSI_C = "$'...' quotes"
    ARITHMETIC = "an arithmetic expression"
    PARAMETER = "a ${...} expansion"
    HERE_DOCUMENT = "a here-document"
    COMMENT = "a comment"
    UNCERTAIN = "a place where the quoting can't be followed"


@dataclass(frozen=True, slots=True)
class TemplateName:
    """A name in braces.

    Attributes:
        name: The dotted name.
        raw: Whether it was written `{name!raw}`: put in as it is, unquoted.
        context: What it stands in.
        line: Its line in the text, from 1.
    """

    name: str
    raw: bool
    context: Context
    line: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A placeholder with all that quoting needs to know of its place.

    Attributes:
        text: The placeholder as written.
        before, after: The characters beside it; empty at the ends.
        backtick: Whether it stands inside backticks, which take one level of backslashes away.
        backtick_quoted: Whether those backticks stand inside double quotes.
        why: Why the quoting can't be followed, for `UNCERTAIN`.
    """

    name: TemplateName
    text: str
    before: str
    after: str
    backtick: bool = False
    backtick_quoted: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with names in braces; see `parse`."""

    text: str
    parts: tuple[str | _Place, ...]

    @property
    def names(self) -> tuple[TemplateName, ...]:
        """All that could be a name, declared or not, in order; none from comments."""
        return tuple(
            part.name
            for part in self.parts
            if isinstance(part, _Place) and part.name.context is not Context.COMMENT
        )

    def used(self, declared: Collection[str]) -> tuple[str, ...]:
        """The declared names that it uses, each once, in order."""
        return tuple(dict.fromkeys(found.name for found in self.names if found.name in declared))

    def check(
        self,
        declared: Collection[str],
        *,
        where: Where | None = None,
        elsewhere: Mapping[str, str] | None = None,
    ) -> None:
        """Refuse a name that looks meant but isn't declared, and a value that can't be quoted.

        Args:
            declared: The names that have a value.
            where: The place of the text.
            elsewhere: Names that exist but not here, each with what to do about it.

        Raises:
            BadInput: With the name, its context, and the nearest declared name.
        """
        for match in _DOLLAR.finditer(self.text):
            if match[1] in declared:
                raise BadInput(
                    f"`{match[0]}` is no variable of the shell: a name there has no dots",
                    where=where,
                    expected=f"`{{{match[1]}}}`, without the $",
                )
        for place in self._places():
            if place.name.name in declared:
                if not place.name.raw and place.name.context in _UNQUOTABLE:
                    raise _unquotable(place, where)
            elif _looks_meant(place, declared, elsewhere or {}):
                raise _undeclared(place, declared, elsewhere or {}, where)

    def render(self, values: Mapping[str, str], *, where: Where | None = None) -> str:
        """The text with each declared name's value put in, quoted for its place.

        Args:
            values: Text by dotted name. Names in braces that it lacks stay as they are.
            where: The place of the text, for an error.

        Raises:
            BadInput: As `check`, or a value in an arithmetic expression is no whole number.
        """
        self.check(values.keys(), where=where)
        return "".join(
            part if isinstance(part, str) else self._value(part, values, where)
            for part in self.parts
        )

    def _value(self, place: _Place, values: Mapping[str, str], where: Where | None) -> str:
        found = place.name
        if found.name not in values or found.context is Context.COMMENT:
            return place.text
        value = values[found.name]
        if found.raw:
            return value
        if found.context is Context.ARITHMETIC and not re.fullmatch(r"-?[0-9]+", value):
            raise BadInput(
                f"the value of `{found.name}` stands in {found.context}: {value!r}",
                where=where,
                expected="a whole number",
                hint="move it out of the expression, or hand it over with the stage's `params:`",
            )
        return _quote(value, place)

    def _places(self) -> Iterable[_Place]:
        return (
            part
            for part in self.parts
            if isinstance(part, _Place) and part.name.context is not Context.COMMENT
        )


def parse(text: str, *, shell: bool = True) -> Template:
    """Find the names in a text, and what each stands in.

    Args:
        text: A shell command, or a text that no shell reads.
        shell: Whether a shell reads it; False for `env`, `inputs`, `cwd` and file names.
    """
    if not shell:
        return Template(text, _plain_parts(text))
    lexer = _Lexer(text)
    lexer.run()
    return Template(text, tuple(lexer.parts))


def _plain_parts(text: str) -> tuple[str | _Place, ...]:
    parts: list[str | _Place] = []
    end = 0
    for match in _PLACEHOLDER.finditer(text):
        if text[: match.start()].endswith("$"):
            continue
        line = text.count("\n", 0, match.start()) + 1
        name = TemplateName(match[1], match[2] is not None, Context.PLAIN, line)
        parts += [text[end : match.start()], _Place(name, match[0], "", "")]
        end = match.end()
    return (*parts, text[end:])


# --- refusals ----------------------------------------------------------------------------------

_UNQUOTABLE = frozenset({Context.PARAMETER, Context.HERE_DOCUMENT, Context.UNCERTAIN})


def _looks_meant(place: _Place, declared: Collection[str], elsewhere: Mapping[str, str]) -> bool:
    """Whether an undeclared name was meant to be replaced, rather than text for the program."""
    name = place.name
    if not _LIKE_A_NAME.fullmatch(name.name):
        return False
    if name.raw or name.name in elsewhere:
        return True
    # `{id}` in quotes is the program's own more often than `run.id` without its `run.`.
    own = [known for known in declared if known not in RUN_NAMES]
    if nearest(name.name, own, MEANT) is not None:
        return True
    if name.context is Context.HERE_DOCUMENT:
        # Programs in here-documents have braces of their own, and no way to quote them.
        return False
    if "." in name.name:
        return True
    # `{fd}>file` is bash's own: it puts a descriptor's number into the variable `fd`.
    descriptor = place.after in ("<", ">") and (place.before == "" or place.before.isspace())
    return name.context is Context.OUTSIDE and not descriptor


def _undeclared(
    place: _Place, declared: Collection[str], elsewhere: Mapping[str, str], where: Where | None
) -> BadInput:
    name = place.name.name
    match = nearest(name, [*declared, *elsewhere])
    if name in elsewhere:
        advice = elsewhere[name]
    elif match is None:
        advice = "declare it under `params:`"
    else:
        advice = f"did you mean `{{{match}}}`?"
        if match in elsewhere:
            advice += f" Then {elsewhere[match]}."
    return BadInput(
        f"`{place.text}` ({_line(place)}{place.name.context}) is no declared name",
        where=where,
        expected=one_of(sorted(declared)),
        hint=f"{advice}\n  or, if the program is to receive the braces: {_literally(place)}",
    )


def _literally(place: _Place) -> str:
    """How to write the braces so that the program receives them."""
    inner = place.text[1:]
    ways = {
        Context.OUTSIDE: f"write \\{{{inner}",
        Context.SINGLE: f"write {{''{inner}",
        Context.DOUBLE: f'write {{""{inner}',
    }
    return ways.get(place.name.context, "put them into a script")


def _unquotable(place: _Place, where: Where | None) -> BadInput:
    name = place.name.name
    why = f" ({place.why})" if place.why else ""
    return BadInput(
        f"`{place.text}` stands in {place.name.context}{why}, where a value can't be quoted",
        where=where,
        expected="a name outside quotes, in '...', in \"...\" or in $(...)",
        hint=f"hand it over with the stage's `params: [{name}]` and use ${variable(name)}, "
        f"or write {{{name}!raw}} to put it in unquoted",
    )


def _line(place: _Place) -> str:
    return f"line {place.name.line}, " if place.name.line > 1 else ""


def variable(name: str) -> str:
    """The environment variable that hands a parameter over: `a.b-c` as `A_B_C`."""
    return re.sub(r"[^A-Za-z0-9]", "_", name).upper()


# --- quoting -----------------------------------------------------------------------------------

_BARE = re.compile(r"(-?[0-9]|[A-Za-z_./:@+])[A-Za-z0-9_./:@+-]*")
"""Words without a meaning of their own; `-a` is an operator inside `[[ ]]`."""
_RESERVED = frozenset(
    {"if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "while", "until", "for"}
    | {"select", "function", "in", "time", "coproc"}
)
_BARE_BEFORE = frozenset(" \t\n=/:.,{")
_BARE_AFTER = frozenset(' \t\n/:.,};|&)"')


def _quote(value: str, place: _Place) -> str:
    context = place.name.context
    if context is Context.SINGLE:
        quoted = value.replace("'", "'\"'\"'")
    elif context is Context.DOUBLE:
        quoted = re.sub(r'[\\"$`]', r"\\\g<0>", value)
    elif context is Context.ANSI_C:
        quoted = re.sub(r"[\\']", r"\\\g<0>", value)
    elif context is Context.OUTSIDE:
        quoted = value if _may_stay_bare(value, place) else _in_single_quotes(value)
    else:
        quoted = value
    if place.backtick:
        escaped = r'[\\$`"]' if place.backtick_quoted else r"[\\$`]"
        quoted = re.sub(escaped, r"\\\g<0>", quoted)
    return quoted


def _may_stay_bare(value: str, place: _Place) -> bool:
    """Whether bash reads the bare value as the word that it is.

    Not beside a character that could join it to something else: `{n}>file` would redirect.
    """
    return (
        _BARE.fullmatch(value) is not None
        and ".." not in value
        and value not in _RESERVED
        and (place.before == "" or place.before in _BARE_BEFORE)
        and (place.after == "" or place.after in _BARE_AFTER)
    )


def _in_single_quotes(value: str) -> str:
    quoted = shlex.quote(value)
    return quoted if quoted.startswith("'") or '"' in quoted else f"'{quoted}'"


# --- following bash ----------------------------------------------------------------------------


class _Mode(StrEnum):
    """What the pass is inside of."""

    COMMAND = "command"
    SUBSTITUTION = "$(...)"
    BACKTICK = "`...`"
    SINGLE = "'...'"
    DOUBLE = '"..."'
    ANSI_C = "$'...'"
    ARITHMETIC = "((...))"
    PARAMETER = "${...}"


_CODE = frozenset({_Mode.COMMAND, _Mode.SUBSTITUTION, _Mode.BACKTICK})
_CONTEXTS = {
    _Mode.COMMAND: Context.OUTSIDE,
    _Mode.SUBSTITUTION: Context.OUTSIDE,
    _Mode.BACKTICK: Context.OUTSIDE,
    _Mode.SINGLE: Context.SINGLE,
    _Mode.DOUBLE: Context.DOUBLE,
    _Mode.ANSI_C: Context.ANSI_C,
    _Mode.ARITHMETIC: Context.ARITHMETIC,
    _Mode.PARAMETER: Context.PARAMETER,
}
_BEFORE_COMMAND = frozenset(
    {"if", "then", "else", "elif", "do", "while", "until", "time"},
)
_WORD = re.compile(r"[A-Za-z_]+(?=[\s;|&()<>]|$)")
_WORD_ENDS = frozenset(" \t\n;|&()<>")


@dataclass(slots=True)
class _Frame:
    """One level of bash's nesting.

    Attributes:
        mode: What it is.
        parens: Parentheses open in it.
        cases: `case` without its `esac`: their patterns end in a `)` that closes nothing.
        command: Whether the next word is a command's name.
        quoted: For backticks: whether they stand inside double quotes.
    """

    mode: _Mode
    parens: int = 0
    cases: int = 0
    command: bool = True
    quoted: bool = False


@dataclass(slots=True)
class _HereDocument:
    """A here-document whose body is still to come; `depth` is the nesting of its `<<`."""

    end: str
    tabs: bool
    depth: int


@dataclass(slots=True)
class _Lexer:
    """Follows bash's quoting through a command and notes each name in braces."""

    text: str
    position: int = 0
    start: int = 0
    """Where the literal text begins that isn't in `parts` yet."""
    parts: list[str | _Place] = field(default_factory=list)
    stack: list[_Frame] = field(default_factory=lambda: [_Frame(_Mode.COMMAND)])
    waiting: list[_HereDocument] = field(default_factory=list)
    lost: str = ""
    """Why the quoting can't be followed from here on; empty while it can."""

    def run(self) -> None:
        while self.position < len(self.text):
            mode = self.stack[-1].mode
            if mode in _CODE:
                self.code()
            elif mode is _Mode.SINGLE:
                self.single()
            elif mode is _Mode.ANSI_C:
                self.ansi_c()
            elif mode is _Mode.DOUBLE:
                self.double()
            elif mode is _Mode.ARITHMETIC:
                self.arithmetic()
            else:
                self.parameter()
        self.literal(self.position)
        if len(self.stack) > 1:
            self.give_up(f"{self.stack[-1].mode} is opened and not closed", from_start=True)
        elif self.waiting:
            self.give_up("a here-document has no body", from_start=True)

    # What each level does with the next character.

    def code(self) -> None:
        frame = self.stack[-1]
        here = self.text[self.position]
        if self.quote_or_expansion(here):
            frame.command = False
        elif here == "\n":
            self.position += 1
            frame.command = True
            self.bodies()
        elif here == "#" and self.at_word_start():
            self.comment()
        elif here == "<" and self.follows("<<<"):
            self.position += 3
        elif here == "<" and self.follows("<<"):
            self.here_document()
        elif here == "(" and frame.command and self.follows("(("):
            self.position += 2
            self.stack.append(_Frame(_Mode.ARITHMETIC, parens=2))
            frame.command = False
        elif here == "(":
            self.position += 1
            frame.parens += 1
            frame.command = True
        elif here == ")":
            self.position += 1
            self.closing()
        elif here in ";|&":
            self.position += 1
            frame.command = True
        elif self.brace(here):
            frame.command = False
        elif here in " \t<>":
            self.position += 1
        else:
            self.word()

    def single(self) -> None:
        here = self.text[self.position]
        if here == "'":
            self.position += 1
            self.stack.pop()
        elif self.after_dollar() or not self.brace(here):
            self.position += 1

    def ansi_c(self) -> None:
        if self.text[self.position] == "\\":
            self.position += 2
        else:
            self.single()

    def double(self) -> None:
        here = self.text[self.position]
        if here == '"':
            self.position += 1
            self.stack.pop()
        elif here == "'" or not (self.quote_or_expansion(here) or self.brace(here)):
            self.newline(here)
            self.position += 1

    def arithmetic(self) -> None:
        frame = self.stack[-1]
        here = self.text[self.position]
        if here == "'":
            self.give_up("single quotes in an arithmetic expression")
            self.position += 1
        elif here == '"':
            self.position += 1
        elif self.quote_or_expansion(here):
            pass
        elif here in "()":
            self.position += 1
            frame.parens += 1 if here == "(" else -1
            if frame.parens == 1 and here == ")" and not self.follows(")"):
                self.give_up("`((` that doesn't end in `))`")
            if frame.parens == 0:
                self.stack.pop()
        elif not self.brace(here):
            self.newline(here)
            self.position += 1

    def parameter(self) -> None:
        here = self.text[self.position]
        if here == "}":
            self.position += 1
            self.stack.pop()
        elif here in "'\"" and self.double_quoted():
            self.give_up('quotes in a ${...} inside "..."')
            self.position += 1
        elif not (self.quote_or_expansion(here) or self.brace(here)):
            self.newline(here)
            self.position += 1

    # What several levels share.

    def quote_or_expansion(self, here: str) -> bool:
        """Take what opens a level, or an escaped character; whether there was one."""
        if here == "\\":
            if self.in_backticks() and self.text[self.position + 1 : self.position + 2] in tuple(
                '\\$`"'
            ):
                self.give_up("a backslash inside backticks; $(...) is clearer")
            self.position += 2
        elif here == "'":
            self.open(_Mode.SINGLE, 1)
        elif here == '"':
            if any(frame.quoted for frame in self.stack):
                # Bash 5.2 reads such quotes by other rules: "`p "<({"`" is an error to it.
                self.give_up('"..." inside backticks inside "..."; $(...) is clearer')
            self.open(_Mode.DOUBLE, 1)
        elif here == "`":
            self.backtick()
        elif here == "$":
            self.dollar()
        else:
            return False
        return True

    def dollar(self) -> None:
        quoted = self.stack[-1].mode is _Mode.DOUBLE
        if self.follows("$(("):
            self.position += 3
            self.stack.append(_Frame(_Mode.ARITHMETIC, parens=2))
        elif self.follows("$("):
            self.open(_Mode.SUBSTITUTION, 2)
        elif self.follows("${"):
            self.open(_Mode.PARAMETER, 2)
            if self.follows("#"):
                self.position += 1
        elif self.follows("$["):
            self.give_up("`$[...]`; write $((...))")
            self.position += 2
        elif self.follows("$'") and not quoted:
            self.open(_Mode.ANSI_C, 2)
        elif self.follows('$"') and not quoted:
            self.open(_Mode.DOUBLE, 2)
        elif self.text[self.position + 1 : self.position + 2] in tuple("$#?!@*-0123456789"):
            self.position += 2
        else:
            self.position += 1

    def backtick(self) -> None:
        depth = next(
            (n for n, frame in enumerate(self.stack) if frame.mode is _Mode.BACKTICK), None
        )
        if depth is None:
            quoted = self.double_quoted()
            self.open(_Mode.BACKTICK, 1)
            self.stack[-1].quoted = quoted
            return
        if depth != len(self.stack) - 1:
            self.give_up("a backtick inside backticks; $(...) is clearer")
        del self.stack[depth:]
        self.position += 1

    def open(self, mode: _Mode, length: int) -> None:
        self.stack.append(_Frame(mode))
        self.position += length

    def closing(self) -> None:
        """A `)`: of a parenthesis, of a case's pattern, or of the substitution itself."""
        frame = self.stack[-1]
        if frame.parens:
            frame.parens -= 1
            frame.command = frame.cases > 0
        elif frame.cases:
            frame.command = True
        elif frame.mode is _Mode.SUBSTITUTION:
            self.stack.pop()

    def word(self) -> None:
        """A run of plain characters; `case` and `esac` count where a command's name may stand."""
        frame = self.stack[-1]
        match = _WORD.match(self.text, self.position)
        if match and frame.command and self.at_word_start():
            word = match[0]
            if word == "case":
                frame.cases += 1
            elif word == "esac" and frame.cases:
                frame.cases -= 1
            frame.command = word in _BEFORE_COMMAND
            self.position = match.end()
            return
        frame.command = frame.command and self.text[self.position] in "{!"
        self.position += 1

    def comment(self) -> None:
        stop = "\n`" if self.in_backticks() else "\n"
        while self.position < len(self.text) and self.text[self.position] not in stop:
            if not self.brace(self.text[self.position], Context.COMMENT):
                self.position += 1

    def here_document(self) -> None:
        self.position += 2
        tabs = self.follows("-")
        self.position += tabs
        while self.follows(" ") or self.follows("\t"):
            self.position += 1
        begin = self.position
        quotes = ""
        while self.position < len(self.text):
            here = self.text[self.position]
            if quotes:
                quotes = "" if here == quotes else quotes
            elif here in "'\"":
                quotes = here
            elif here == "\\":
                self.position += 1
            elif here in _WORD_ENDS:
                break
            self.position += 1
        word = self.text[begin : self.position]
        if self.in_backticks() or "$" in word or "`" in word or "{" in word:
            self.give_up("a here-document whose end can't be told")
        end = re.sub(r"\\(.)|['\"]", r"\1", word)
        self.waiting.append(_HereDocument(end, tabs, len(self.stack)))

    def newline(self, here: str) -> None:
        if here == "\n" and self.waiting:
            self.give_up("a here-document that begins inside quotes")

    def bodies(self) -> None:
        """Take the bodies of the here-documents whose line has just ended."""
        for document in self.waiting:
            if document.depth != len(self.stack):
                self.give_up("a here-document that begins inside another level")
            while True:
                if self.position >= len(self.text):
                    if len(self.stack) > 1:
                        self.give_up("a here-document without its end")
                    break
                stop = self.text.find("\n", self.position)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.position : stop]
                ended = (line.lstrip("\t") if document.tabs else line) == document.end
                while self.position < stop:
                    here = self.text[self.position]
                    if self.after_dollar() or not self.brace(here, Context.HERE_DOCUMENT):
                        self.position += 1
                self.position = min(stop + 1, len(self.text))
                if ended:
                    break
        self.waiting.clear()

    def brace(self, here: str, context: Context | None = None) -> bool:
        """Take a name in braces, if one stands here; whether there was one."""
        match = _PLACEHOLDER.match(self.text, self.position) if here == "{" else None
        if match is None:
            return False
        self.literal(match.start())
        backticks = [frame for frame in self.stack if frame.mode is _Mode.BACKTICK]
        context = context or _CONTEXTS[self.stack[-1].mode]
        if self.lost and context is not Context.COMMENT:
            context = Context.UNCERTAIN
        line = self.text.count("\n", 0, match.start()) + 1
        self.parts.append(
            _Place(
                TemplateName(match[1], match[2] is not None, context, line),
                match[0],
                before=self.text[match.start() - 1 : match.start()],
                after=self.text[match.end() : match.end() + 1],
                backtick=bool(backticks),
                backtick_quoted=any(frame.quoted for frame in backticks),
                why=self.lost,
            )
        )
        self.position = self.start = match.end()
        return True

    def literal(self, end: int) -> None:
        if end > self.start:
            self.parts.append(self.text[self.start : end])
        self.start = end

    def give_up(self, why: str, *, from_start: bool = False) -> None:
        """Say that the quoting can't be followed from here on, or that it never could be."""
        self.lost = self.lost or why
        if from_start:
            self.parts = [
                part if isinstance(part, str) else _uncertain(part, self.lost)
                for part in self.parts
            ]

    def double_quoted(self) -> bool:
        """Whether `"..."` is open at this level of commands."""
        for frame in reversed(self.stack):
            if frame.mode is _Mode.DOUBLE or frame.mode in _CODE:
                return frame.mode is _Mode.DOUBLE
        return False

    def in_backticks(self) -> bool:
        return any(frame.mode is _Mode.BACKTICK for frame in self.stack)

    def follows(self, text: str) -> bool:
        return self.text.startswith(text, self.position)

    def after_dollar(self) -> bool:
        return self.text[self.position - 1 : self.position] == "$"

    def at_word_start(self) -> bool:
        before = self.text[self.position - 1 : self.position] if self.position else ""
        return before == "" or before in _WORD_ENDS or before == "`"


def _uncertain(place: _Place, why: str) -> _Place:
    found = place.name
    if found.context is Context.COMMENT:
        return place
    return _Place(
        TemplateName(found.name, found.raw, Context.UNCERTAIN, found.line),
        place.text,
        place.before,
        place.after,
        why=why,
    )
