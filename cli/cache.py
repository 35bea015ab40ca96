"""`benchwright cache`: list, verify and prune built artifacts."""

from __future__ import annotations

import click

from benchwright.identity.cache import ArtifactCache
from cli.options import home_option, json_option, open_home
from cli.output import print_json, print_table


@click.group(epilog="\b\nExamples:\n  benchwright cache list\n  benchwright cache prune --keep 10")
def cache() -> None:
    """List, verify and prune built artifacts."""


def _open(home: str | None) -> ArtifactCache:
    return ArtifactCache(open_home(home) / "cache")


@cache.command("list")
@home_option
@json_option
def list_entries(home: str | None, as_json: bool) -> None:
    """List what is in the cache, the latest used first."""
    entries = _open(home).entries()
    if as_json:
        print_json(
            {
                "entries": [
                    {
                        "signature": entry.signature,
                        "stage": entry.stage,
                        "created": entry.created,
                        "bytes": entry.size,
                    }
                    for entry in entries
                ]
            }
        )
        return
    print_table(
        ("signature", "stage", "created", "MB"),
        [(e.signature[:12], e.stage, e.created, f"{e.size / 1e6:.1f}") for e in entries],
        right=["MB"],
    )


@cache.command()
@home_option
@json_option
def verify(home: str | None, as_json: bool) -> int:
    """Read every artifact again and compare it with its digest. Exit code 4 if one is broken."""
    problems = [(entry, text) for entry, text in _open(home).verify() if text]
    if as_json:
        print_json({"broken": {entry.signature: text for entry, text in problems}})
    elif problems:
        print_table(
            ("signature", "stage", "what is wrong"),
            [(entry.signature[:12], entry.stage, text) for entry, text in problems],
        )
        click.echo("a broken artifact is never used: it is built anew when it is needed", err=True)
    else:
        click.echo("every artifact is intact")
    return 4 if problems else 0


@cache.command()
@click.option("--keep", type=click.IntRange(0), metavar="N", help="Keep the N newest.")
@click.option("--older-than", type=float, metavar="DAYS", help="Remove those older than this.")
@click.option("--max-mb", type=float, metavar="MB", help="Remove the oldest until it fits.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and leave it.")
@home_option
@json_option
def prune(
    keep: int | None,
    older_than: float | None,
    max_mb: float | None,
    dry_run: bool,
    home: str | None,
    as_json: bool,
) -> None:
    """Remove artifacts that no run uses at the moment. They are built anew when needed."""
    if keep is None and older_than is None and max_mb is None:
        raise click.UsageError("say what may go: --keep N, --older-than DAYS or --max-mb MB")
    gone = _open(home).prune(
        keep=keep,
        older_than_s=older_than * 86400 if older_than is not None else None,
        max_size_mb=max_mb,
        dry_run=dry_run,
    )
    if as_json:
        names = [entry.signature for entry in gone.removed]
        print_json({"removed": names, "freed_bytes": gone.freed, "dry_run": dry_run})
        return
    verb = "would remove" if dry_run else "removed"
    click.echo(f"{verb} {len(gone.removed)} artifact(s), {gone.freed / 1e6:.1f} MB")
    if gone.in_use:
        click.echo(f"left {len(gone.in_use)} that a run is using", err=True)
