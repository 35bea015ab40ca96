"""The local Prefect server and the local engine: what runs an experiment on this machine.

`client` is the way in, and answers without Prefect; `server` and `engine` are the two processes
behind it; `state` is what they keep under the home folder; `environment` says what a process
inherits and when a process is out of date. docs/local-engine.md tells why it is built so.
"""
