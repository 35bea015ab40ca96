"""The `benchwright` command.

Each verb's module is imported when the verb is called, so that `--help`, `history` and a refusal
of a bad configuration don't pay for what they don't use; none of them imports Prefect.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from benchwright.errors import BenchwrightError, Interrupted
from cli.output import print_error

VERBS: dict[str, tuple[str, str]] = {
    "run": ("cli.run:run", "Run an experiment and say what came of it."),
    "plan": ("cli.plan:plan", "Say what a run would do, without running it."),
    "status": ("cli.status:status", "Show what is running, or where one run stands."),
    "history": ("cli.history:history", "List earlier runs, or a metric's course over them."),
    "compare": ("cli.judge:compare", "Compare two runs, where they can be compared."),
    "analyze": ("cli.judge:analyze", "Read a run as a sceptic would."),
    "reclassify": ("cli.judge:reclassify", "Lower a run's tag, with a reason."),
    "cancel": ("cli.control:cancel", "End a run and everything that it started."),
    "resume": ("cli.control:resume", "Go on with a run that was interrupted."),
    "lessons": ("cli.notes:lessons", "Add or list what was learned."),
    "risks": ("cli.notes:risks", "Add or list what may go wrong."),
    "accuracy": ("cli.serving:accuracy", "Say whether a served model still answers right."),
    "speed": ("cli.serving:speed", "Say how fast a served model answers."),
    "nightly": ("cli.nightly:nightly", "Run a suite every night, or once, and say what got worse."),
    "dashboard": ("cli.nightly:dashboard", "Show where a suite stands, as a table and a page."),
    "recipes": ("cli.recipes:recipes", "List the experiments that are ready to run."),
    "domain": ("cli.domain:domain", "Write a configuration or a Python domain to start from."),
    "cache": ("cli.cache:cache", "List, verify and prune built artifacts."),
    "deploy": ("cli.deploy:deploy", "Tell a Prefect server all deployments, blocks and limits."),
    "doctor": ("cli.doctor:doctor", "Check what runs stand on, and mend what can be mended."),
    "server": ("cli.fleet:server", "Run a server for many machines, on PostgreSQL."),
    "worker": ("cli.fleet:worker", "Take experiments from a server, and run them on this host."),
    "up": ("cli.local:up", "Start the local Prefect server and engine, and keep them."),
    "down": ("cli.local:down", "End the local Prefect server and engine."),
}
"""Module and function of each verb, and its line in `--help`."""


WARM = (
    "benchwright.planning.plan",
    "benchwright.planning.quoting",
    "benchwright.planning.start",
    "benchwright.report.json",
    "benchwright.report.text",
    "cli.consent",
    "cli.follow",
    "cli.run",
    "deployments.local.client",
    "domains.serving.accuracy_domain",
    "domains.serving.speed_domain",
    "rich.console",
)
"""What `run` imports where it is used."""

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
"""Of a write to standard output: the file behind it can't take it, a full disk for instance."""


class Verbs(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order in which a newcomer meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        if cmd_name not in VERBS:
            return None
        module, _, function = VERBS[cmd_name][0].partition(":")
        command = getattr(import_module(module), function)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a verb; for an unknown one, say the nearest."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in VERBS:
            from benchwright.spec.suggest import nearest

            near = nearest(name, VERBS)
            hint = f" Did you mean '{near}'?" if near else ""
            raise click.UsageError(f"No such verb '{name}'.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExamples:\n"
    "  benchwright run retrieval-index\n"
    "  benchwright plan experiment.yaml -p corpus.n_docs=50000\n"
    "  benchwright run experiment.yaml --replicates 20 --json\n"
    "  benchwright history --tag RELIABLE",
)
@click.version_option(package_name="benchwright", message="%(prog)s %(version)s")
def group() -> None:
    """Run experiments on any system, and say whether their results may be believed."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Run a verb and leave with its exit code.

    0 done, 2 bad input, 3 a gate refused, 4 a stage failed, 5 a guard or a budget ended it,
    130 interrupted; 1 for a fault of Benchwright's own.
    """
    sys.exit(call(sys.argv[1:] if argv is None else argv))


def warm_up() -> None:
    """Import what the verbs need that the engine carries out; it calls this once, at its start."""
    for name in WARM:
        import_module(name)


def call(argv: list[str]) -> int:
    """Run a verb; returns its exit code. Errors with a text for a person are printed."""
    as_json = "--json" in argv
    try:
        result: Any = group.main(argv, prog_name="benchwright", standalone_mode=False)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.format_message(), err=True)
        return asked.exit_code
    except click.ClickException as problem:
        print_error(problem, as_json=as_json)
        return problem.exit_code
    except BenchwrightError as problem:
        print_error(problem, as_json=as_json)
        return problem.exit_code
    except (KeyboardInterrupt, click.Abort):
        print_error(Interrupted("interrupted"), as_json=as_json)
        return Interrupted.exit_code
    except SystemExit:  # click's answer to a closed pipe (`benchwright history | head`), no other
        return 0
    except OSError as problem:
        if problem.filename is not None or problem.errno not in UNWRITABLE:
            raise
        print_error(
            BenchwrightError(
                f"the output could not be written: {problem.strerror}",
                hint="what was run is recorded: benchwright history",
            ),
            as_json=False,
        )
        # What is still buffered can't be written either: leave without trying again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BenchwrightError.exit_code
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    main()
