"""Where domains and recipes are found.

A domain is found by the name after `domain:`, in this order:

1. those of this folder;
2. those of installed packages, which announce a class under the entry point group
   `benchwright.domains`;
3. those of a Python file beside the configuration, which defines a subclass of `Domain`.

Of two with one name the one found last counts, so that a copy can be tried before it is installed.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from benchwright.errors import BadInput, Where

if TYPE_CHECKING:
    from benchwright import BenchmarkConfig, Domain, Stage
    from benchwright.spec.domain import Domains

ENTRY_POINTS = "benchwright.domains"
"""Entry point group of packages that bring domains: `name = "package.module:Class"`."""

MODULE_LIMIT = 1024 * 1024
"""Bytes of a Python file beside a configuration that is still read in search of a domain."""


def known_domains(near: Path | str | None = None) -> Domains:
    """The domains that a configuration can name.

    Args:
        near: The configuration, or its folder: Python files beside it are searched for domains.
            Only a file that defines a subclass of `Domain` is imported. A recipe's name, which is
            neither, adds nothing.

    Raises:
        BadInput: A file in the folder defines a domain and can't be imported.
    """
    from benchwright.spec.domain import Domains
    from domains.command import CommandDomain
    from domains.serving.accuracy_domain import AccuracyDomain
    from domains.serving.speed_domain import SpeedDomain

    domains = Domains()
    for own in (CommandDomain(), AccuracyDomain(), SpeedDomain()):
        domains.add(own)
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        domains.add(_installed(entry))
    if near is not None and Path(near).exists():
        folder = Path(near).resolve()
        for domain in _beside(folder if folder.is_dir() else folder.parent):
            domains.add(domain)
    return domains


def recipe_folders() -> tuple[Path, ...]:
    """Folders whose subfolders are recipes: `./recipes`, then the one that came with Benchwright.

    Of two recipes with one name the first folder's counts: a copy can be changed.
    """
    packaged = Path(__file__).resolve().parent.parent / "recipes"
    own = Path.cwd() / "recipes"
    return tuple(dict.fromkeys(path for path in (own, packaged) if path.is_dir()))


def _installed(entry: EntryPoint) -> Domain:
    from benchwright import Domain

    try:
        found = entry.load()
        domain = found() if isinstance(found, type) else found
        if not isinstance(domain, Domain):
            raise TypeError(f"{entry.value} is no subclass of benchwright.Domain")
    except Exception as problem:  # a stranger's package can fail in any way
        return _broken(entry, problem)
    return domain


def _broken(entry: EntryPoint, problem: Exception) -> Domain:
    """Stands in for an installed domain that can't be loaded.

    It is refused where it is used: the others go on working.
    """
    from benchwright import Domain

    package = entry.dist.name if entry.dist else entry.value

    class Broken(Domain):
        """Refuses every configuration with the reason."""

        name: ClassVar[str] = entry.name

        def check(self, config: BenchmarkConfig) -> None:
            raise BadInput(
                f"the domain '{entry.name}' of the package {package} can't be loaded: {problem!r}",
                where=Where(key="domain"),
                expected=f"a subclass of benchwright.Domain at {entry.value}",
                hint=f"reinstall {package}, or report it to its authors",
            )

        def stages(self, config: BenchmarkConfig) -> Sequence[Stage]:
            self.check(config)
            return ()

    return Broken()


def _beside(folder: Path) -> Iterator[Domain]:
    """The domains of the Python files in a folder, in the order of the files' names."""
    from benchwright import Domain

    for file in sorted(folder.glob("*.py")):
        if not _may_define_domain(file):
            continue
        module = _import(file)
        for found in vars(module).values():
            is_domain = isinstance(found, type) and issubclass(found, Domain)
            if is_domain and found.__module__ == module.__name__ and _named(found):
                yield found()


def _named(domain: type[Any]) -> bool:
    return isinstance(getattr(domain, "name", None), str)


def _may_define_domain(file: Path) -> bool:
    """Whether the file has a class whose base is called `Domain`, without importing it.

    The scripts of an experiment lie beside its configuration too, and must not be run by a plan.
    """
    try:
        if not file.is_file() or file.stat().st_size > MODULE_LIMIT:
            return False
        source = file.read_bytes()
        if b"Domain" not in source:
            return False
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError):
        return False  # a script of another Python, or no Python at all
    return any(
        isinstance(node, ast.ClassDef) and any(_ends_in_domain(base) for base in node.bases)
        for node in tree.body
    )


def _ends_in_domain(base: ast.expr) -> bool:
    name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
    return bool(name) and name.endswith("Domain")


def _import(file: Path) -> ModuleType:
    """Import a file under its own name, as the stages' processes do.

    Raises:
        BadInput: It fails, or its name is another module's already.
    """
    name = file.stem
    loaded = sys.modules.get(name)
    if loaded is not None:
        if Path(getattr(loaded, "__file__", None) or "").resolve() == file.resolve():
            return loaded
        raise BadInput(
            f"{file.name} has the name of a module that is loaded already"
            f" ({getattr(loaded, '__file__', None) or 'built in'})",
            where=Where(file=file),
            hint="rename the file",
        )
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # At the end: a file beside the configuration must not replace a module of the application's.
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as problem:  # the file's own code can fail in any way
        del sys.modules[name]
        raise BadInput(
            f"{file.name} defines a domain, but can't be imported: {problem!r}",
            where=Where(file=file, line=_line(problem, file)),
            hint=f"see the whole error with: python {file}",
        ) from problem
    return module


def _line(problem: Exception, file: Path) -> int | None:
    """The line of the file that the error passed through last."""
    if isinstance(problem, SyntaxError):
        return problem.lineno
    line, frame = None, problem.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(file):
            line = frame.tb_lineno
        frame = frame.tb_next
    return line
