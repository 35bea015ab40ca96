"""A process worker whose runs are forked from a process that has all imported.

Prefect's own (3.9) starts an interpreter that fetches and unpacks the flow's code, and that then
becomes the one that runs it: Prefect is imported twice, 1.2 s of a processor each time, and the
application once. Our flows come with the installation, so there is nothing to fetch; see
`deployments.fleet.template` for the rest.

    python -m deployments.fleet.run_worker --pool POOL --name HOST ...

takes what `prefect worker start` takes.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

from prefect.utilities.processutils import command_to_string
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker

from deployments.fleet import template

RUN = (sys.executable, "-m", "deployments.fleet.flow_run")


class RunConfiguration(ProcessJobConfiguration):
    """How a run is started: by our command, unless its deployment names one."""

    def prepare_for_flow_run(self, *args: Any, **known: Any) -> None:
        """Fill in what a run needs; a command that is there by now is started as it is."""
        if self.command is None:
            self.command = command_to_string(list(RUN))
        super().prepare_for_flow_run(*args, **known)


with warnings.catch_warnings():
    # It takes the place of Prefect's own in its registry, which warns of it.
    warnings.simplefilter("ignore", UserWarning)

    class RunWorker(ProcessWorker):
        """A worker of pools of type `process`."""

        type = "process"
        job_configuration = RunConfiguration


def main() -> None:
    """`prefect worker start`, with this worker."""
    from prefect.cli import app

    template.start(os.environ)
    sys.argv[:1] = ["prefect", "--no-prompt", "worker", "start", "--type", RunWorker.type]
    app()


if __name__ == "__main__":
    # The class is to be that of the module that others import.
    from deployments.fleet import run_worker

    run_worker.main()
