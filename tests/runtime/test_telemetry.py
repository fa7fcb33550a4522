"""The figures of several processes as one set."""

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead

from runtime.bus import TopicPartition
from runtime.telemetry import FamilyRegistry, Telemetry

# Each in a process of its own: prometheus_client looks for the folder when it is imported.
MEMBER = """
import os, sys
from pathlib import Path
from runtime.bus import TopicPartition
from runtime.telemetry import FamilyRegistry, Telemetry

telemetry = Telemetry(FamilyRegistry(Path(sys.argv[1])))
role, number = telemetry.role("render"), int(sys.argv[2])
role.handled("done", work_s=number, bytes_in=10, bytes_out=100)
role.load(records=number, held_bytes=0)
telemetry.loop_lag.set(number)
role.lag(TopicPartition("t", 0), 5)
if number == 2:
    role.lost(TopicPartition("t", 0))
print(os.getpid())
"""
LABELS = {"role": "render"}


def member(folder: Path, number: int) -> int:
    """A process that measured something and has ended; its id."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", MEMBER, str(folder), str(number)],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return int(done.stdout)


def test_counts_add_up_and_each_gauge_in_its_own_way(tmp_path):
    first, _ = member(tmp_path, 1), member(tmp_path, 2)
    figure = FamilyRegistry(tmp_path).get_sample_value

    assert figure("tokenfleet_records_handled_total", {**LABELS, "outcome": "done"}) == 2
    assert figure("tokenfleet_record_duration_seconds_sum", LABELS) == 3
    assert figure("tokenfleet_records_in_flight", LABELS) == 3
    assert figure("tokenfleet_event_loop_lag_seconds") == 2
    assert figure("tokenfleet_lag_records", {**LABELS, "topic": "t", "partition": "0"}) == 5

    mark_process_dead(first, str(tmp_path))

    assert figure("tokenfleet_records_handled_total", {**LABELS, "outcome": "done"}) == 2
    assert figure("tokenfleet_records_in_flight", LABELS) == 2


def test_alone_a_partition_that_is_lost_is_not_reported_any_more():
    telemetry = Telemetry()
    role, partition = telemetry.role("render"), TopicPartition("t", 0)

    role.lag(partition, 5)
    assert b"tokenfleet_lag_records{" in telemetry.render()
    role.lost(partition)

    assert b"tokenfleet_lag_records{" not in telemetry.render()
