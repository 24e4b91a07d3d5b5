"""The launcher starts, awaits, restarts and reports on a data service that is not one of headrace's own."""

from pathlib import Path

from tests.support import copy_source, run_job

TOY = Path(__file__).parent / "toy_service"


def test_a_third_data_service_needs_no_line_in_the_launcher(tmp_path):
    source = copy_source(tmp_path / "source", *TOY.glob("*.py"))
    run = run_job(
        tmp_path,
        f"--source_dir={source}",
        "--training_script=read_toys.py",
        "--num_of_data_instances=2",
        "--processes_per_host=2",
        "--batch_size=1",
        "--hyperparameter=lease_s=60",
    )
    assert run.code == 0, run.output
    assert run.output.count("heard algo-1 algo-2 algo-3 hello") == 2
    assert [event.fields["n"] for event in run.events("workers_ready")] == ["3"]
    assert len(run.events("toys_agreed")) == 1
    restarted = [host for host, record in run.summary["hosts"].items() if record["restarts"]["toy"]]
    assert set(restarted) <= {"algo-1", "algo-2"}  # a host's last report may be older than its last restart
    assert ["event=restarted role=toy" in run.log(f"algo-{n}") for n in (1, 2, 3)] == [True, True, False]
