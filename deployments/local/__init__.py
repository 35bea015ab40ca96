"""The local Prefect server and the local engine: what runs an experiment on this machine.

`client` is the way in, and answers without Prefect; `server` and `engine` are the two processes
behind it, and `protocol` is what client and engine say to each other. `state` is what they keep
under the home folder, `launch` starts them, `environment` says what a process inherits and when
an engine is out of date, `template` spares a new home Prefect's migrations, `crash` tells Prefect
of a run that was killed, and `orphan` ends one whose engine is gone. docs/local-engine.md tells
why it is built so.
"""
