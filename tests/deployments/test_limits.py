"""Set-up and repair of a host's limits, as `up` and `doctor` use them."""

from __future__ import annotations

import uuid
from pathlib import Path

from benchwright.record.store import RunStore
from benchwright.spec.manifest import Manifest
from benchwright.spec.model import BenchmarkConfig
from deployments.limits import free_slots, limits_of, set_up
from tasks.limits import LEASES, measure_limit


def _acquire(api_url: str, name: str) -> str:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: api_url}), get_client(sync_client=True) as client:
        answer = client.increment_concurrency_slots_with_lease(
            names=[name], slots=1, mode="concurrency", lease_duration=60
        )
    return str(answer.json()["lease_id"])


def test_a_host_gets_its_limits_once(local_api_url: str) -> None:
    host = f"up-{uuid.uuid4().hex[:8]}"
    assert limits_of(local_api_url, host) == []
    for _ in range(2):
        made = set_up(local_api_url, host, gpus=3)
        assert made[f"measure:{host}"] == 1
        assert made[f"gpu:{host}"] == 3
    assert [(one.slots, one.taken) for one in limits_of(local_api_url, host)] == [(1, 0), (3, 0)]
    assert f"gpu:{host}-cpu" not in set_up(local_api_url, f"{host}-cpu", gpus=0)


def test_leaked_slots_are_freed_by_lease_and_then_by_force_where_nobody_runs(
    local_api_url: str, tmp_path: Path
) -> None:
    host = f"leak-{uuid.uuid4().hex[:8]}"
    set_up(local_api_url, host, gpus=0)
    dead = RunStore(tmp_path).create(
        BenchmarkConfig(domain="command"), "dead", Manifest(), config_hash="ab" * 32
    )
    lease = _acquire(local_api_url, measure_limit(host))
    (dead.path / LEASES).write_text(f'"{lease}"\n')
    assert free_slots(local_api_url, tmp_path) == [dead.run_id]
    assert limits_of(local_api_url, host)[0].taken == 0
    _acquire(local_api_url, measure_limit(host))  # nobody wrote it down
    assert free_slots(local_api_url, tmp_path) == []
    with dead.lock():
        assert free_slots(local_api_url, tmp_path, host) == []
    assert free_slots(local_api_url, tmp_path, host) == [measure_limit(host)]
    assert limits_of(local_api_url, host)[0].taken == 0
