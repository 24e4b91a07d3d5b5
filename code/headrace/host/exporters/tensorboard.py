"""Export the hosts' usage and the workers' rates to TensorBoard, in the folder that rank 0 writes to.

The launcher imports no framework, so this module needs only the `tensorboard` package.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.host.exporters.exporter import Record, Write


def to_event_file(folder: Path) -> Write:
    """Return a function that writes records to an event file in this folder. Raises `OSError`, `ImportError`."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.hosts"
    file = open(folder / name, "wb")  # noqa: SIM115
    records = RecordWriter(file)
    records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
    step = 0

    def write(given: Sequence[Record]) -> None:
        nonlocal step
        for record in given:
            step = int(record.get("step", step))
            values = [
                Summary.Value(tag=f"{kind}/{name}/{figure}", simple_value=value)
                for kind in ("groups", "workers")
                for name, figures in record.get(kind, {}).items()
                for figure, value in figures.items()
            ]
            if values:
                event = Event(wall_time=record["time"], step=step, summary=Summary(value=values))
                records.write(event.SerializeToString())
        file.flush()

    return write
