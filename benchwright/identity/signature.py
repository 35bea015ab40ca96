"""Signatures: the digest of everything that a prep stage's output depends on."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import util
from importlib.machinery import PathFinder
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING

from benchwright.errors import BadInput, Where
from benchwright.identity.canonical import canonical_json, digest
from benchwright.identity.digests import DigestMemo
from benchwright.identity.sources import Source, command_sources, module_sources, value_sources
from benchwright.spec.values import Value

if TYPE_CHECKING:
    from benchwright.spec.model import Stage

FORMAT = "1"
"""Raised when the same stage would be signed in another way."""

LONGEST_SHOWN = 120
"""A parameter's value is kept as it is up to this many characters, as a digest beyond."""

LONGEST_COMMAND = 4_000
"""Likewise for a command."""

FILES_LISTED = 200
"""A folder of at most this many files is signed file by file, so that a miss can name one."""

CHANGES_SAID = 6
"""An explanation names at most this many changes."""

NOT_CONTENT = {"__pycache__"}
"""Folders that Python writes beside what it runs: no part of an input."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a prep stage's output depends on.

    Attributes:
        digest: SHA-256 in hex of the parts' canonical form.
        parts: A short value or a digest for each part, by a name that a person can read:
            `parameter corpus.n_docs`, `file build_index.sh`, `input data/a.csv`, `command`,
            `upstream corpus`, `environment FOO`, `domain version`.
        stage: The stage's name. Not part of the digest: two stages that do the same share an
            entry of the cache.
    """

    digest: str
    parts: Mapping[str, str]
    stage: str = ""


def sign(
    stage: Stage,
    *,
    command: str | None,
    params: Mapping[str, Value],
    env: Mapping[str, str],
    folder: Path,
    cwd: Path,
    upstream: Mapping[str, str],
    domain: str,
    domain_version: str,
    memo: DigestMemo | None = None,
) -> Signature:
    """The signature of a stage: of a prep stage its key in the cache; of any other it only tells
    what it would run, since those always run.

    Part of it are:
    - the rendered command; the file contents below stand for absolute paths in it,
    - the parameters in `params`, `1` and `1.0` being two values,
    - which parameters are exported, the stage's own environment, its working directory, its
      host, and the names of its artifacts,
    - content and mode of a file that the value of a parameter or variable names in `cwd`,
    - content and executable mode of `inputs`: files, and folders with all that's in them but
      `__pycache__`; links are followed,
    - content and executable mode of the files that the command names, relative to `cwd` or
      absolute, but for the machine's own under `/usr`, `/bin` and their like (`/usr/local`
      counts), and of what Python scripts among them import from beside them, from `cwd` or from a
      declared PYTHONPATH, and what shell scripts source or name there, recursively,
    - for a function, its module and the modules of the same top-level package (or folder) that it
      imports, and the interpreter's `major.minor`,
    - the signatures of the stages whose artifacts it needs,
    - the domain's name and version.

    Not part of it are output paths, the folder in which all this lies, time limits and resources,
    installed packages (a domain raises its version for these), and files that a command only
    finds while it runs (declare them under `inputs`).

    Args:
        stage: The stage.
        command: Its command as rendered for this arm, with placeholders such as `<out:index>`
            and `<in:corpus>` for paths of artifacts; None for a function, which has none.
        params: The values of the parameters that it uses, by dotted name: those in templates
            and those exported. A function sees all parameters of its arm.
        env: Its declared environment, with placeholders likewise; exported parameters may be
            in it. Values are kept as digests.
        folder: The configuration's folder, which `inputs` start from.
        cwd: Its working directory.
        upstream: Digest of the signature of the stage that makes it, by artifact needed.
        domain: The domain's name.
        domain_version: The domain's version.
        memo: Remembers the digests of large files, so that a plan is quick.

    Raises:
        BadInput: An input is missing, can't be read, is no file or folder, or its links go round
            in a circle; the function's module can't be found.
    """
    reader = _Reader(stage, memo or DigestMemo())
    folder, cwd = _absolute(folder), _absolute(cwd)
    places = _Places(folder, cwd)
    own_env, exported = _split_exported(stage, params, env)
    if stage.function is None:
        sources = command_sources(command or "", cwd, _python_path(env, cwd))
    else:
        sources = _function_sources(stage, folder, cwd)
    texts = [value for value in (*params.values(), *own_env.values()) if isinstance(value, str)]
    names = places.names((*sources, *value_sources(texts, cwd)))

    parts = {"format": FORMAT, "domain": domain, "domain version": domain_version}
    if stage.function is None:
        parts["command"] = _short_text(places.portable(command or "", names), LONGEST_COMMAND)
    else:
        parts["function"] = str(stage.function)
        parts["interpreter"] = f"python {sys.version_info.major}.{sys.version_info.minor}"
    parts["artifacts"] = ", ".join(sorted(stage.produces)) or "none"
    parts["exported parameters"] = ", ".join(sorted(exported)) or "none"
    if stage.cwd:
        parts["working directory"] = places.portable(stage.cwd, {})
    if stage.host:
        parts["host"] = stage.host
    for name, value in params.items():
        parts[f"parameter {name}"] = _short_value(value)
    for name, text in own_env.items():
        # With the name in it, two variables with one secret can't be told to be the same.
        parts[f"environment {name}"] = digest(f"{name}\0{places.portable(text, {})}")
    for artifact, signature in upstream.items():
        parts[f"upstream {artifact}"] = signature
    for declared in stage.inputs:
        parts.update(reader.input_parts(declared, folder / declared))
    for path, name in names.items():
        parts[f"file {name}"] = reader.file(path, name)
    ordered = dict(sorted(parts.items()))
    return Signature(digest(canonical_json(ordered)), ordered, stage.name)


def explain(new: Signature, old_parts: Mapping[str, str]) -> str:
    """What changed since an earlier signature, in words; empty where nothing did.

    A command that differs only where a changed parameter was put in isn't named besides the
    parameter.
    """
    said = [
        _sentence(name, old_parts.get(name), new.parts.get(name))
        for name in changed_parts(new.parts, old_parts)
        if name != "command" or not _follows(new.parts, old_parts)
    ]
    if len(said) > CHANGES_SAID:
        said[CHANGES_SAID:] = [f"and {len(said) - CHANGES_SAID} more changes"]
    return "; ".join(said)


def changed_parts(new: Mapping[str, str], old: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the parts that differ: parameters first, then the rest by name."""
    changed = {name for name in new.keys() | old.keys() if new.get(name) != old.get(name)}
    return tuple(sorted(changed, key=lambda name: (not name.startswith("parameter "), name)))


def _sentence(name: str, old: str | None, new: str | None) -> str:
    """One change, as a clause."""
    kind = name.partition(" ")[0]
    if kind in {"file", "input"}:
        return _file_sentence(name, old, new)
    hidden = kind in {"environment", "upstream"}
    if old is None:
        return f"{name} is new" if hidden else f"{name} is new: {new}"
    if new is None:
        return f"{name} is gone" if hidden else f"{name} is gone (it was {old})"
    if hidden or _is_digest(old) or _is_digest(new):
        return f"{name} changed"
    if name == "command":
        return f"command: {_differing_words(old, new)}"
    return f"{name}: {old} -> {new}"


def _file_sentence(name: str, old: str | None, new: str | None) -> str:
    if old is None:
        return f"{name} is new"
    if new is None:
        return f"{name} is gone"
    (old_content, _, old_mode), (new_content, _, new_mode) = old.partition(" "), new.partition(" ")
    if old_content != new_content:
        return f"{name} changed"
    return f"{name} {'is now' if new_mode and not old_mode else 'is no longer'} executable"


def _follows(new: Mapping[str, str], old: Mapping[str, str]) -> bool:
    """Whether the new command is the old one with the changed parameters put in."""
    values = [
        (_unquoted(old[name]), _unquoted(new[name]))
        for name in changed_parts(new, old)
        if name.startswith("parameter ") and name in new and name in old
    ]
    before, after = old.get("command", "").split(), new.get("command", "").split()
    if not values or len(before) != len(after):
        return False
    return all(
        one == two or any(was in one and one.replace(was, now) == two for was, now in values)
        for one, two in zip(before, after, strict=True)
    )


def _differing_words(old: str, new: str) -> str:
    """The stretch in which two commands differ, without what they share at both ends."""
    before, after = old.split(), new.split()
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    was = " ".join(before[start : len(before) - end]) or "(nothing)"
    now = " ".join(after[start : len(after) - end]) or "(nothing)"
    return f"{_clip(was)} -> {_clip(now)}"


def _clip(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _is_digest(text: str) -> bool:
    return text.startswith("sha256:") or re.fullmatch(r"[0-9a-f]{64}", text) is not None


def _short_text(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"sha256:{digest(text)}"


def _short_value(value: Value) -> str:
    return _short_text(canonical_json(value).decode(), LONGEST_SHOWN)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute keeps `..`


def _split_exported(
    stage: Stage, params: Mapping[str, Value], env: Mapping[str, str]
) -> tuple[dict[str, str], frozenset[str]]:
    """The environment without exported parameters, which are parts already, and their variables."""
    from benchwright.spec.graph import environment

    exported = environment(stage, params)
    own = {name: text for name, text in env.items() if exported.get(name) != text}
    return own, frozenset(exported)


def _python_path(env: Mapping[str, str], cwd: Path) -> tuple[Path, ...]:
    return tuple(cwd / entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry)


class _Places:
    """Names for files that don't tell where the experiment lies."""

    def __init__(self, folder: Path, cwd: Path) -> None:
        self._folder, self._cwd = folder, cwd
        self._roots = (folder, cwd)

    def names(self, sources: tuple[Source, ...]) -> dict[Path, str]:
        """A name for each file, unique, in the order given."""
        names: dict[Path, str] = {}
        for source in sources:
            if source.path in names:
                continue
            name = self._name(source)
            number = 2
            while name in names.values():
                name, number = f"{self._name(source)} ({number})", number + 1
            names[source.path] = name
        return names

    def _name(self, source: Source) -> str:
        for root in self._roots:
            if source.path.is_relative_to(root):
                return str(source.path.relative_to(root))
        return os.path.relpath(source.path, source.origin)

    def portable(self, text: str, names: Mapping[Path, str]) -> str:
        """The text with names for absolute paths: of the files, then of the roots."""
        for path, name in sorted(names.items(), key=lambda item: -len(str(item[0]))):
            if not any(path.is_relative_to(root) for root in self._roots):
                text = text.replace(str(path), f"<file:{name}>")
        for root, label in ((self._folder, "<folder>"), (self._cwd, "<cwd>")):
            if root != Path("/"):
                text = re.sub(rf"{re.escape(str(root))}(?![\w.-])", label, text)
        return text


class _Reader:
    """Reads the files of one stage; a file that it can't read is the user's mistake."""

    def __init__(self, stage: Stage, memo: DigestMemo) -> None:
        self._stage = stage
        self._memo = memo

    def file(self, path: Path, name: str) -> str:
        """`<sha256>`, or `<sha256> x` for an executable file."""
        try:
            mode = path.stat().st_mode
            return self._memo.of(path) + (" x" if mode & 0o111 else "")
        except OSError as error:
            raise self._unreadable(name, error) from error

    def input_parts(self, declared: str, path: Path) -> dict[str, str]:
        """The parts of one entry of `inputs`: file by file, or one for a large folder."""
        if not S_ISDIR(self._status(path, declared).st_mode):
            return {f"input {declared}": self._entry(path, declared)}
        entries = dict(self._walk(path, "", declared.rstrip("/"), ()))
        if len(entries) > FILES_LISTED:
            return {f"input {declared}": digest(canonical_json(entries))}
        listed = {f"input {declared.rstrip('/')}/{name}": value for name, value in entries.items()}
        return listed or {f"input {declared}": "an empty folder"}

    def _walk(
        self, path: Path, inside: str, declared: str, above: tuple[tuple[int, int], ...]
    ) -> Iterator[tuple[str, str]]:
        """All files below a folder, in sorted order; an empty folder is an entry too."""
        status = self._status(path, f"{declared}/{inside}")
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            raise self._mistake(
                f"{declared}/{inside}",
                "is a link that leads back to a folder above it",
                "remove the link, or name the files one by one",
            )
        try:
            names = sorted(entry.name for entry in path.iterdir())
        except OSError as error:
            raise self._unreadable(f"{declared}/{inside}", error) from error
        names = [name for name in names if name not in NOT_CONTENT]
        if not names and inside:
            yield inside, "an empty folder"
        for name in names:
            below = f"{inside}{name}"
            shown = f"{declared}/{below}"
            if S_ISDIR(self._status(path / name, shown).st_mode):
                yield from self._walk(path / name, f"{below}/", declared, (*above, identity))
            else:
                yield below, self._entry(path / name, shown)

    def _entry(self, path: Path, shown: str) -> str:
        if not S_ISREG(self._status(path, shown).st_mode):
            raise self._mistake(
                shown, "is neither a file nor a folder", "name regular files under `inputs`"
            )
        return self.file(path, shown)

    def _status(self, path: Path, shown: str) -> os.stat_result:
        try:
            return path.stat()
        except OSError as error:
            raise self._unreadable(shown, error) from error

    def _unreadable(self, shown: str, error: OSError) -> BadInput:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return self._mistake(
                shown, "does not exist", "make it, or correct its name; it's relative to the file"
            )
        if error.errno == errno.ELOOP:
            return self._mistake(shown, "is a link that leads back to itself", "remove the link")
        return self._mistake(shown, f"can't be read: {error.strerror}", "make it readable")

    def _mistake(self, shown: str, what: str, hint: str) -> BadInput:
        return BadInput(
            f"stage '{self._stage.name}': input '{shown}' {what}",
            where=Where(key=f"stages.{self._stage.name}.inputs"),
            expected="files and folders that are there and can be read",
            hint=hint,
        )


def _function_sources(stage: Stage, folder: Path, cwd: Path) -> tuple[Source, ...]:
    """The module of a function stage and its local imports, found without importing it."""
    module = str(stage.function).partition(":")[0]
    package, _, _ = module.partition(".")
    places = [str(cwd), str(folder), *(entry or "." for entry in sys.path)]
    origin = _module_origin(module, places)
    if origin is None:
        raise BadInput(
            f"stage '{stage.name}': there is no Python module '{module}'",
            where=Where(key=f"stages.{stage.name}.function"),
            expected="`package.module:function`, in the configuration's folder or installed",
            hint="correct the name, or put the module beside the configuration",
        )
    if "." not in module and origin.name != "__init__.py":
        return module_sources(origin, origin.parent, None)
    depth = module.count(".") + (origin.name == "__init__.py")
    return module_sources(origin, origin.parents[depth], package)


def _module_origin(module: str, places: list[str]) -> Path | None:
    """The source file of a module. Packages on the way are found, not executed."""
    first, *rest = module.split(".")
    PathFinder.invalidate_caches()
    spec = PathFinder.find_spec(first, places)
    if spec is None:
        # An editable installation has a finder of its own; for a top level, it runs no code.
        try:
            spec = util.find_spec(first)
        except (ImportError, ValueError):
            return None
    name = first
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return _absolute(Path(spec.origin))
