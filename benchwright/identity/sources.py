"""Which files a command depends on: those it names, and those that its scripts import or source.

Found by reading, never by running. What can't be found this way (a glob, a path put together at
run time, an installed package) belongs under a stage's `inputs`. Finding a file too many only
costs a rebuild that was not needed; finding one too few would give a wrong hit, so that the rules
here take a word for a file where one of that name is there.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/dev", "/proc", "/sys")
"""Files here are the machine's, and so the fingerprint's matter; `/usr/local` is a user's."""

SCRIPT_BYTES = 256_000
"""A larger file isn't read as a script, only hashed."""

_PLACEHOLDER = re.compile(r"<(?:in|out):[^>]*>")
_COMMENT_LINE = re.compile(r"^\s*#.*$", re.MULTILINE)
_REDIRECTED = re.compile(r"""(?:\d|&)?>{1,2}[|&]?\s*(?:"[^"\n]*"|'[^'\n]*'|[^\s;|&()<>"']+)""")
_EXPANSION = re.compile(r"\$\{[^}\n]{0,200}\}|\$\w+|\$[@*#?$!-]")
_QUOTED = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'")
_WORD = re.compile(r"[\w.@%+,~/-]+")
_SOURCED = re.compile(r"""(?:^|[;&|({\s])(?:source|\.)\s+["']?([^\s;|&"')]+)""", re.MULTILINE)
_CHANGED_TO = re.compile(r"""(?:^|[;&|({\s])cd\s+["']?([^\s;|&"'$)]+)""", re.MULTILINE)
_PYTHONPATH = re.compile(r"""\bPYTHONPATH=["']?([^\s;|&"'$]+)""")
_MODULE = re.compile(r"\bpython[\d.]*(?:\s+-[A-Za-z]+)*?\s+-m\s+[\"']?([\w.]+)")


@dataclass(frozen=True, slots=True)
class Source:
    """A file that a command depends on.

    Attributes:
        path: Where it is, absolute, links not resolved.
        origin: Folder of the script that the command names and that leads here.
    """

    path: Path
    origin: Path


def command_sources(
    command: str, cwd: Path, python_path: Sequence[Path] = ()
) -> tuple[Source, ...]:
    """The files that a shell command names, and what they import or source, recursively.

    A word of the command is a file where one of that name exists, relative to `cwd` or to a folder
    that the command changes to (`cd tools && ./make.sh`), absolute, or under `~`. A system program
    (see `SYSTEM_FOLDERS`) isn't, nor the target of a redirection, nor a placeholder such as
    `<out:index>`. `python -m package.module` names that module's file where it lies in `cwd`, on
    `python_path`, or on a PYTHONPATH that the command sets.

    Args:
        command: As it is handed to the shell.
        cwd: The stage's working directory, absolute.
        python_path: Folders of a declared PYTHONPATH.

    Returns:
        Each file once, in the order in which it was found.
    """
    text = _PLACEHOLDER.sub("\x01", command)
    folders = (cwd, *(cwd / folder for folder in _CHANGED_TO.findall(text)))
    added = [entry for setting in _PYTHONPATH.findall(text) for entry in setting.split(":")]
    search = (*folders, *python_path, *(cwd / entry for entry in added if entry))
    seen: dict[Path, Source] = {}
    for path in _named_files(text, folders, any_absolute=True):
        _follow(Source(path, path.parent), search, seen)
    for module in _MODULE.findall(text):
        for path in module_files(module, search):
            _follow(Source(path, cwd), search, seen)
        for path in module_files(f"{module}.__main__", search):
            _follow(Source(path, cwd), search, seen)
    return tuple(seen.values())


def value_sources(values: Iterable[str], cwd: Path) -> tuple[Source, ...]:
    """The files that parameters and variables name, relative to `cwd`: a data set, a setting.

    Absolute ones count too, but for the machine's own.
    """
    found = (_locate(value, (cwd,)) for value in values if value and not value.startswith("<"))
    return tuple(Source(path, path.parent) for path in found if path and not _is_system(path))


def module_sources(file: Path, top: Path, package: str | None) -> tuple[Source, ...]:
    """A Python module and its local imports, recursively.

    Args:
        file: The module's source.
        top: The folder that holds the top-level package, or the module itself.
        package: Name of the top-level package; only what lies in it is local. None: a module that
            is in no package; all in its folder is local.
    """
    seen: dict[Path, Source] = {}
    inside = top / package if package else top
    if package:
        here = file.parent
        while here != top and here.is_relative_to(top):
            _follow(Source(here / "__init__.py", top), (top,), seen, inside)
            here = here.parent
    _follow(Source(file, top), (top,), seen, inside)
    return tuple(seen.values())


def module_files(module: str, search: Iterable[Path]) -> tuple[Path, ...]:
    """The files that `import module` would load from the first folder that has it.

    Packages on the way count with their `__init__.py`; a compiled extension counts as a file. A
    last part that is no module (`from package import name`) is left out.
    """
    for folder in search:
        found: list[Path] = []
        here = folder
        for part in module.split("."):
            if (here / part / "__init__.py").is_file():
                here /= part
                found.append(here / "__init__.py")
            elif (here / f"{part}.py").is_file():
                found.append(here / f"{part}.py")
                break
            elif extensions := sorted(here.glob(f"{part}.*.so")):
                found += extensions
                break
            elif (here / part).is_dir():
                here /= part
            else:
                break
        if found:
            return tuple(found)
    return ()


def _follow(
    source: Source, search: Sequence[Path], seen: dict[Path, Source], inside: Path | None = None
) -> None:
    """Add a file and all that it leads to. A loop: a long chain of imports is no deep recursion."""
    waiting = [source]
    while waiting:
        here = waiting.pop()
        path = _normal(here.path)
        outside = inside is not None and not path.is_relative_to(inside)
        if path in seen or outside or not _is_file(path):
            continue
        seen[path] = Source(path, here.origin)
        waiting += [Source(found, here.origin) for found in _references(path, here.origin, search)]


def _references(path: Path, origin: Path, search: Sequence[Path]) -> Iterator[Path]:
    """The files that a script names: imports of Python, words of any other script."""
    text = _script_text(path)
    if text is None:
        return
    # Python puts the folder of the script's target first on its path, a shell sees the link's.
    beside = tuple(dict.fromkeys((path.parent, path.resolve().parent)))
    if _is_python(path, text):
        roots = (*beside, origin, *search)
        yield from _imported_files(text, path, roots)
    else:
        yield from _named_files(text, (*beside, *search), any_absolute=False)
        for module in _MODULE.findall(text):
            yield from module_files(module, search)


def _script_text(path: Path) -> str | None:
    """A script's text, or None for what is no script."""
    if path.stat().st_size > SCRIPT_BYTES:
        return None
    try:
        content = path.read_bytes()
    except OSError:
        return None
    is_script = path.suffix in {".py", ".sh", ".bash"} or content.startswith(b"#!")
    return content.decode("utf-8", "replace") if is_script else None


def _is_python(path: Path, text: str) -> bool:
    first = text.partition("\n")[0]
    return path.suffix == ".py" or (first.startswith("#!") and "python" in first)


def _imported_files(text: str, path: Path, search: Sequence[Path]) -> Iterator[Path]:
    """Local files that a Python source imports, and scripts that its texts name."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield from module_files(name.name, search)
        elif isinstance(node, ast.ImportFrom):
            yield from _from_files(node, path, search)
        elif isinstance(node, ast.Call):
            yield from _called_import(node, search)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _script_literal(node.value, search)


def _from_files(node: ast.ImportFrom, path: Path, search: Sequence[Path]) -> Iterator[Path]:
    module = node.module or ""
    if node.level:
        package = path.parent
        for _ in range(node.level - 1):
            package = package.parent
        search = (package,)
    if module:
        yield from module_files(module, search)
    for name in node.names:
        if name.name != "*":
            yield from module_files(f"{module}.{name.name}".strip("."), search)


def _called_import(node: ast.Call, search: Sequence[Path]) -> Iterator[Path]:
    """`importlib.import_module("x")` and `__import__("x")` with the name written out."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else None
    name = node.func.id if isinstance(node.func, ast.Name) else name
    if name not in {"import_module", "__import__"} or not node.args:
        return
    first = node.args[0]
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        yield from module_files(first.value.strip("."), search)


def _script_literal(text: str, search: Sequence[Path]) -> Iterator[Path]:
    """A text that names a script: what `subprocess` or `runpy` would start.

    Only scripts and programs: other files named in Python are as often written as read.
    """
    if not text or len(text) > 255 or "\n" in text or "\0" in text:
        return
    for folder in search:
        path = folder / text
        is_script = path.suffix in {".py", ".sh", ".bash"}
        if _is_file(path) and (is_script or os.access(path, os.X_OK)):
            yield path
            return


def _named_files(text: str, folders: Sequence[Path], *, any_absolute: bool) -> Iterator[Path]:
    """Existing files that a shell text names.

    Args:
        text: A command, or a script.
        folders: Where a relative name is looked for; the first that has it.
        any_absolute: Whether any absolute name counts; else only one that is sourced or can be
            executed, since scripts name absolute paths for logs and scratch files too.
    """
    sourced = set(_SOURCED.findall(text))
    for word in _words(text):
        path = _locate(word, folders)
        if path is None:
            continue
        if word.startswith(("/", "~/")) and path == _normal(Path(os.path.expanduser(word))):  # noqa: PTH111
            is_meant = any_absolute or word in sourced or os.access(path, os.X_OK)
            if not is_meant or _is_system(path):
                continue
        yield path


def _words(text: str) -> Iterable[str]:
    """Everything in a shell text that might be a file's name, each once."""
    text = _REDIRECTED.sub(" ", _COMMENT_LINE.sub("", text.replace("\\\n", " ")))
    words: dict[str, None] = {}
    # An apostrophe in a here-document, say, is an error here: the patterns below still read it.
    with contextlib.suppress(ValueError):
        for word in shlex.split(text):
            words.update({word: None, word.partition("=")[2]: None})
    literal = _EXPANSION.sub(" ", text)
    words.update(dict.fromkeys(one or two for one, two in _QUOTED.findall(literal)))
    words.update(dict.fromkeys(_WORD.findall(literal)))
    return words


def _locate(word: str, folders: Sequence[Path]) -> Path | None:
    if "\0" in word or "\x01" in word or len(word) > 4096:
        return None
    if word.startswith("~/"):
        word = os.path.expanduser(word)  # noqa: PTH111 - never raises, unlike Path.expanduser
    path = Path(word)
    if path.is_absolute() and _is_file(path):
        return _normal(path)
    # What is left of `$here/lib.sh` or `$(dirname "$0")/lib.sh` is `/lib.sh`.
    relative = word.lstrip("/")
    if not relative or relative in {".", ".."}:
        return None
    return next((folder / relative for folder in folders if _is_file(folder / relative)), None)


def _is_file(path: Path) -> bool:
    try:
        return S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _is_system(path: Path) -> bool:
    return not path.is_relative_to("/usr/local") and any(
        path.is_relative_to(folder) for folder in SYSTEM_FOLDERS
    )


def _normal(path: Path) -> Path:
    """Absolute and without `..`, links kept."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute keeps `..`
