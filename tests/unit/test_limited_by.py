"""The report, the plan and the summary agree on what limits a run's steps."""

import json
import sys

import pytest
from headrace.errors import InputError
from headrace.host.usage.gpus import Gpus
from headrace.job.limited_by import ARITHMETIC, COPYING, GPU, PROCESS, WAITING, limited_by
from headrace.report.compare import compare_rows, verdict
from headrace.report.plan import main
from headrace.report.runs import read_summary
from headrace.training.signal_files import SignalFiles

from tests.integration.test_host_figures import wait_until
from tests.unit.test_plan import summary

DATA_HOST = {"group": "data_group", "instance_type": "ml.c5.18xlarge", "cpus": 72, "cpu_s": {"worker": 9.0}}


def run(step_ms, ideal_ms, busy=None, parts=None, data_hosts=0, samples=60, gpus=8, ranks=8):
    """Return the summary of a run with these step times in ms and this utilisation of its GPUs (`busy`, 0 to 1)."""
    host = {"group": "dnn_group", "instance_type": "ml.p4d.24xlarge", "cpus": 96, "cpu_s": {}}
    gpu = {"count": gpus, "utilization": busy, "samples": samples}
    waiting, copying = parts or (step_ms - ideal_ms, None)
    told = {"waiting": waiting, "copying": copying, "computing": step_ms - waiting - (copying or 0)}
    hosts = {"algo-1": host | ({"gpu": gpu} if busy is not None else {})}
    hosts |= {f"algo-{number + 2}": DATA_HOST for number in range(data_hosts)}
    return summary(
        step_time_ms={"median": step_ms, "mean": step_ms, "p90": step_ms},
        ideal_step_time_ms=ideal_ms,
        input_bound_share=max(1 - ideal_ms / step_ms, 0.0),
        step_parts_ms=told,
        ideal_step_from="measured",
        hosts=hosts,
        is_hetero=bool(data_hosts),
        world_size=ranks,
        tf_data_mode="service" if data_hosts else "local",
        compute_cpu_s_per_step=0.01,
        rank_cpu_s_per_step=0.02,
    )


# The first four were measured on one H200 (docs/limits.md).
CASES = {
    "TensorFlow alone": (run(445, 187, 0.33), WAITING),
    "TensorFlow with data hosts": (run(197, 181, 0.64, data_hosts=2), PROCESS),
    "PyTorch alone": (run(450, 34, 0.07, (369, 1)), WAITING),
    "PyTorch with data hosts, which hardly waits": (run(67, 34, 0.37, (12, 0.7), data_hosts=2), PROCESS),
    "a busy GPU": (run(100, 95, 0.9), GPU),
    "a GPU that is busy in what waiting leaves": (run(100, 91, 0.8), GPU),
    "one rank on a host of two GPUs": (run(100, 95, 0.45, gpus=2, ranks=1), GPU),
    "a copy that each step waits for": (run(100, 50, 0.5, (10, 40)), COPYING),
    "a CPU": (run(100, 95), ARITHMETIC),
    "a GPU that was looked at twice": (run(100, 95, 0.1, samples=2), ARITHMETIC),
    "processors shared with preprocessing": (run(100, 50, parts=(10, 0)), WAITING),
    "a run without its ideal step": (run(100, 95) | {"ideal_step_time_ms": 0.0, "input_bound_share": 0.0}, ""),
}


@pytest.mark.parametrize("name", CASES)
def test_the_limit_is_told_from_waits_copies_and_how_busy_the_gpu_was(name):
    told, limit = CASES[name]
    assert limited_by(told) == limit


@pytest.mark.parametrize("name", [name for name, (_, limit) in CASES.items() if limit])
def test_report_and_plan_agree_on_the_limit(name, tmp_path, capsys):
    told, limit = CASES[name]
    (tmp_path / "summary.json").write_text(json.dumps(told))
    read = read_summary(tmp_path)
    assert dict(compare_rows([read]))["limited by"] == [limit]
    said = " ".join(verdict([read], [None]))
    assert main([str(tmp_path), "--data_instance_type", "ml.c5.18xlarge"]) == 0
    planned = capsys.readouterr().out
    if limit == WAITING:
        assert "is input-bound" in said
    if limit in (GPU, PROCESS):
        assert f"limited by {limit}" in said and f"are limited by {limit}." in planned
        assert ("more data hosts or a larger GPU do not help" in planned) == (limit == PROCESS)
    if limit == COPYING:
        assert "prefetch_to_device" in said


def test_a_plan_from_an_estimated_ideal_says_so(tmp_path, capsys):
    (tmp_path / "summary.json").write_text(json.dumps(run(100, 80) | {"ideal_step_from": "waits"}))
    main([str(tmp_path)])
    assert "the ideal step time is estimated as step time minus waiting" in capsys.readouterr().out


@pytest.mark.parametrize("parts", [[], {"waiting": "x"}, {"waiting": 1.0, "computing": 1.0, "copying": "x"}])
def test_parts_of_a_step_that_are_no_numbers_are_refused(tmp_path, parts):
    (tmp_path / "summary.json").write_text(json.dumps(run(100, 80) | {"step_parts_ms": parts}))
    with pytest.raises(InputError, match="is not a run's summary"):
        read_summary(tmp_path)


def test_a_gpus_utilization_counts_while_ranks_make_steps(tmp_path, monkeypatch):
    seen = []

    class Nvidia:
        nvmlInit = nvmlDeviceGetCount = staticmethod(lambda: 1)
        nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)

        @staticmethod
        def nvmlDeviceGetUtilizationRates(handle):
            seen.append(handle)
            return type("Rates", (), {"gpu": 50})

        @staticmethod
        def nvmlDeviceGetMemoryInfo(handle):
            return type("Memory", (), {"used": 1, "total": 2})

    monkeypatch.setitem(sys.modules, "pynvml", Nvidia)
    monkeypatch.setattr("headrace.host.usage.gpus.SAMPLE_S", 0.005)
    signals = SignalFiles(tmp_path, lambda: 0)
    signals.steps_over()
    gpus = Gpus(lambda: not list(tmp_path.glob("paused*")))
    wait_until(lambda: len(seen) > 5)
    assert gpus.report()["samples"] == 0, "samples were taken during an evaluation"
    signals.step()
    wait_until(lambda: gpus.report()["samples"] > 5)
    assert gpus.report()["utilization"] == 0.5
