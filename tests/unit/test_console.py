"""A job on this machine prints its hosts' lines in short form, and keeps them whole in log files."""

import io

from headrace.backends.local.log_console import Console, open_log
from headrace.cluster.run_files import RunPaths

LINE = "2026-01-02T03:04:05.678Z algo-1 rank0      {}"


def test_a_hosts_lines_are_in_its_file_as_they_are_and_on_the_stream_in_short(tmp_path):
    stream = io.StringIO()
    with open_log(tmp_path, "algo-1") as file:
        Console(stream=stream).host_line("algo-1", LINE.format("grün"), file)
    assert RunPaths(tmp_path).log("algo-1").read_text(encoding="utf-8") == LINE.format("grün") + "\n"
    assert stream.getvalue() == "03:04:05 algo-1  rank0      grün\n"


def test_a_full_disk_is_told_once_and_costs_the_log_file_alone():
    stream = io.StringIO()
    console = Console(stream=stream)
    with open("/dev/full", "ab", buffering=0) as full:
        for number in range(3):
            console.host_line("algo-1", LINE.format(number), full)
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if "missing" in line] == [lines[0]] and "No space left" in lines[0]
    assert [line.split()[-1] for line in lines[1:]] == ["0", "1", "2"]
