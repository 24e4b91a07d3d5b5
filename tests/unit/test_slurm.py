"""A job on Slurm reads its topology from Slurm's variables, and has the right launcher arguments and batch script."""

import json
import stat
import subprocess
from pathlib import Path

import pytest
from headrace.__main__ import main as headrace
from headrace.backends.slurm import sbatch
from headrace.backends.slurm.batch_script import build_script
from headrace.backends.slurm.slurm_options import GroupOptions, SlurmOptions
from headrace.cluster import slurm
from headrace.cluster.sagemaker import read_topology
from headrace.cluster.slurm import enter_host, expand_hosts, port_offset
from headrace.errors import InputError, SetupError
from headrace.host.host_plan import HostPlan
from headrace.job import settings as job_settings
from headrace.job.settings import read_settings
from headrace.job.spec import Channel, InstanceGroup, JobSpec

from tests.documents import commands_of
from tests.support import ROOT


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[08-11,20],login", ["gpu08", "gpu09", "gpu10", "gpu11", "gpu20", "login"]),
        ("rack[1-2]n[1,3]", ["rack1n1", "rack1n3", "rack2n1", "rack2n3"]),
        ("a-b,c[1]-x", ["a-b", "c1-x"]),
    ],
)
def test_slurms_short_lists_of_hosts_are_read(text, names):
    assert expand_hosts(text) == names


def hetero(run, host="gpu1", **more):
    """Return a task's environment as Slurm 22.05 gives it, with variables that leak from the batch script's node."""
    (run / "secret").touch(mode=0o600)
    (run / "secret").write_text("s3cret\n")
    return {
        "PATH": "/bin", "SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURMD_NODENAME": host,
        "SLURM_JOB_NODELIST": "cpu[1-10],gpu1", "SLURM_JOB_NODELIST_HET_GROUP_0": "gpu1", "SLURM_JOB_NAME": "toys",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "cpu[10,1-9]", "SLURM_JOB_PARTITION_HET_GROUP_0": "gpu",
        "SLURM_JOB_PARTITION_HET_GROUP_1": "cpu", "SLURM_NTASKS": "11", "PMI_RANK": "3", "PMIX_RANK": "3",
        "OMPI_MCA_plm": "slurm", "SLURM_GPUS_ON_NODE": "4", "HEADRACE_RUN": str(run),
        "HEADRACE_SLURM_GROUPS": "dnn_group,data_group", "HEADRACE_SLURM_PORTS": "3",
        "SM_HOSTS": "of another job", **more,
    }  # fmt: skip


def test_the_first_component_trains_and_every_host_knows_all_others(tmp_path):
    environ = enter_host(hetero(tmp_path, "cpu10"))
    topology = read_topology(tmp_path / "cpu10", environ)
    assert topology.leader.name == "gpu1" and topology.dispatcher_host.name == "cpu1"
    assert [host.name for host in topology.data_hosts] == [f"cpu{number}" for number in range(1, 11)]
    assert topology.current.name == "cpu10" and topology.current.instance_type == "cpu"


def test_a_homogeneous_job_only_trains(tmp_path):
    environ = hetero(tmp_path, "n2", HEADRACE_SLURM_GROUPS="homogeneousCluster", SLURM_JOB_NODELIST="n[1-2]")
    environ = {name: value for name, value in environ.items() if "HET" not in name}
    topology = read_topology(tmp_path / "n2", enter_host(environ))
    assert topology.leader.name == "n1" and not topology.is_hetero and len(topology.dnn_hosts) == 2


def test_nothing_of_slurm_reaches_mpirun(tmp_path):
    environ = enter_host(hetero(tmp_path))
    assert [name for name in environ if name.startswith(("SLURM", "PMI", "OMPI")) or "another" in environ[name]] == []
    assert environ["PATH"] == "/bin" and environ["SM_NUM_GPUS"] == "4"


def test_the_hosts_settings_come_from_the_runs_folder_and_their_work_stays_on_the_node(tmp_path):
    environ = enter_host(hetero(tmp_path, TMPDIR="/nowhere"))
    settings = read_settings([], environ)
    assert settings.secret == "s3cret" and settings.base_dir == tmp_path / "gpu1" and settings.job_name == "toys"
    plan = HostPlan(read_topology(settings.base_dir, environ), settings, tmp_path, [], environ)
    assert str(plan.paths.work_dir) == "/tmp/headrace-7-gpu1" and plan.paths.base_dir == settings.base_dir
    ports = {settings.endpoint(name).control_address for name in ("gpu1", "cpu1")}
    assert ports == {"gpu1:16021", "cpu1:16021"} and settings.endpoint("cpu1").first_worker_port == 6022


def test_the_leaders_results_are_the_runs_and_checkpoints_are_shared(tmp_path):
    (tmp_path / "summary.json").write_text("of the run before it was requeued")
    enter_host(hetero(tmp_path))
    enter_host(hetero(tmp_path, "cpu1"))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "gpu1/output/data/metrics.jsonl").write_text("{}")
    (tmp_path / "cpu1/checkpoints/step").write_text("5")
    assert (tmp_path / "metrics.jsonl").exists() and not (tmp_path / "summary.json").exists()
    assert (tmp_path / "gpu1/checkpoints/step").read_text() == "5"


def test_a_channel_is_seen_by_its_groups(tmp_path):
    channels = "both=/data/b@\nimages=/data/i@data_group"
    seen = {host: enter_host(hetero(tmp_path, host, HEADRACE_SLURM_CHANNELS=channels)) for host in ("gpu1", "cpu1")}
    assert json.loads(seen["gpu1"]["SM_CHANNELS"]) == ["both"] and seen["gpu1"]["SM_CHANNEL_BOTH"] == "/data/b"
    assert seen["cpu1"]["SM_CHANNEL_IMAGES"] == "/data/i"


def test_a_secret_that_others_may_read_is_refused(tmp_path):
    environ = hetero(tmp_path)
    (tmp_path / "secret").chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        enter_host(environ)


@pytest.mark.parametrize(
    "wrong", [{"SLURM_HET_SIZE": "3"}, {"SLURMD_NODENAME": "elsewhere"}, {"SLURM_JOB_NODELIST_HET_GROUP_1": ""}]
)
def test_variables_that_contradict_each_other_are_refused(tmp_path, wrong):
    with pytest.raises(InputError):
        enter_host(hetero(tmp_path, **wrong))


def test_jobs_with_numbers_nearby_have_other_ports_and_none_has_slurms():
    for needed in (2, 5, 37):
        taken = [range(port_offset(number, needed), port_offset(number, needed) + needed) for number in range(100, 120)]
        assert len({port for ports in taken for port in ports}) == 20 * needed
        assert max(ports[-1] for ports in taken) + 6000 < 6817
    assert port_offset(100, 0) == 0


def test_the_names_of_variables_agree_with_the_launchers():
    assert slurm.SECRET_VARIABLE == job_settings.SECRET_VARIABLE


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source/train_dnn.py").write_text("pass\n")
    return tmp_path / "source"


def spec(source, *groups, **more):
    groups = groups or (("data_group", 2), ("dnn_group", 1))
    mode = "service" if len(groups) > 1 else "local"
    named = tuple(InstanceGroup(name, "", count) for name, count in groups)
    return JobSpec("toys", named, mode, 2, source_dir=source, **more)


def directives(script):
    """Return the options for sbatch in each component of a script."""
    parts = script.split("#SBATCH hetjob\n")
    return [[line[8:] for line in part.splitlines() if line.startswith("#SBATCH ")] for part in parts]


def test_each_group_is_a_component_with_what_it_asks_for(source, tmp_path):
    options = SlurmOptions(
        tmp_path / "run",
        "/env/bin/python",
        GroupOptions("gpu", "a100|h100", "gpu:8", 96, "0", True),
        GroupOptions("cpu", "", "", 64, "128G", True),
        "1-12:00",
        "physics",
        "high",
        requeue=False,
    )
    script = build_script(spec(source), options)
    trains, makes = directives(script)
    assert {"--nodes=1", "--partition=gpu", "--constraint=a100|h100", "--gres=gpu:8", "--cpus-per-task=96"} < set(
        trains
    )
    assert {"--nodes=2", "--partition=cpu", "--cpus-per-task=64", "--mem=128G"} < set(makes)
    assert {"--time=1-12:00", "--account=physics", "--qos=high", "--exclusive", "--no-requeue", "--no-kill"} < (
        set(trains) & set(makes)
    )
    assert "srun --het-group=0,1 --ntasks-per-node=1" in script and "HEADRACE_SLURM_PORTS" not in script


def test_a_homogeneous_job_is_one_component(source, tmp_path):
    script = build_script(spec(source, ("homogeneousCluster", 2)), SlurmOptions(tmp_path, "python"))
    assert "hetjob" not in script and "--het-group" not in script
    assert "--nodes=2" in directives(script)[0]


def test_what_a_user_gave_survives_the_shell(source, tmp_path):
    given = {"note": "it's $HOME; `rm`", "lr": "-1e-3"}
    channels = (Channel("a", "/data/with space", ("data_group",)), Channel("b", "/data/b"))
    script = build_script(
        spec(source, hyperparameters=given, channels=channels), SlurmOptions(tmp_path, "/usr/bin/printf")
    )
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    (tmp_path / "summary.json").write_text(json.dumps({"outcome": "succeeded"}, indent=2))
    shown = subprocess.run(
        ["bash"],
        input=f"srun() {{ printf '%s\\n' \"$@\"; env; }}\n{script}",
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    assert "it's $HOME; `rm`" in shown.splitlines() and "-1e-3" in shown.splitlines()
    assert "HEADRACE_SLURM_CHANNELS=a=/data/with space@data_group\nb=/data/b@\n" in shown


def test_the_script_holds_no_secret_and_the_file_is_its_owners_alone(source, tmp_path):
    options = SlurmOptions(tmp_path / "run", "python")
    script = sbatch.write_run(spec(source), options, None)
    secret = (tmp_path / "run/secret").read_text().strip()
    assert len(secret) == 64 and secret not in script.read_text()
    assert stat.S_IMODE((tmp_path / "run/secret").stat().st_mode) == 0o600
    assert (tmp_path / "run/code/train_dnn.py").is_file() and (tmp_path / "run/code/launcher.py").is_file()
    with pytest.raises(InputError, match="exists already"):
        sbatch.write_run(spec(source), options, None)


@pytest.mark.parametrize(
    ("gres", "gpus"), [("", 0), ("gpu", 1), ("gpu:8", 8), ("gpu:a100:4", 4), ("nvme:1,gpu:2", 2), ("gpu:h100", 1)]
)
def test_ranks_follow_from_gres(gres, gpus):
    assert GroupOptions(gres=gres).gpus == gpus


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("", 120), ("4", 60), ("1:20", 20), ("1:00:00", 120), ("2-0", 120), ("0-0:4", 60), ("0-00:02:00", 30)],
)
def test_hosts_are_asked_to_stop_two_minutes_before_the_limit_or_for_its_last_quarter(time, seconds):
    assert SlurmOptions(Path("/run"), "python", time=time).stop_before_end_s == seconds


@pytest.mark.parametrize(
    "flags",
    [
        ["--time=soon"], ["--dnn_partition=two words"], ["--channel=a=s3://bucket/a"],
        ["--spot"], ["--cpus=dnn_group=0"],
        ["--dnn_gres=gpu:2", "--processes_per_host=3"], ["--num_of_data_workers=800"], ["--output_dir=/with space"],
        ["--data_cpus=-1"], ["--qos=a\nb"],
    ],
)  # fmt: skip
def test_flags_that_describe_no_job_for_slurm_are_refused_in_a_line(source, flags, capsys):
    assert headrace(["submit", "--to", "slurm", "--dry_run", f"--source_dir={source}", *flags]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("headrace submit --to slurm: error: ") and told.err.count("\n") == 1 and not told.out


def test_without_slurm_the_error_names_the_program(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    code = headrace(
        ["submit", "--to", "slurm", f"--source_dir={source}", f"--output_dir={tmp_path}", "--job_name=toys"]
    )
    assert code == 1 and "sbatch is not installed here" in capsys.readouterr().err
    assert not (tmp_path / "toys").exists(), "the job was not submitted, but its name is taken"


def test_a_job_in_parts_goes_on_while_one_part_does(monkeypatch):
    told = {
        "both": "COMPLETED None\nCOMPLETING None\n",
        "bad": "COMPLETED None\nTIMEOUT TimeLimit\n",
        "good": "COMPLETED None\n",
    }
    states = {}
    for name, text in told.items():
        monkeypatch.setattr(sbatch, "_slurm", lambda *command, text=text: text)
        states[name] = sbatch.job_state("7")
    assert states == {"both": "COMPLETING", "bad": "TIMEOUT TimeLimit", "good": "COMPLETED"}


def test_a_job_that_slurm_has_forgotten_is_gone_and_silence_is_an_error(monkeypatch):
    def refuse(*command):
        raise SetupError(f"squeue: {said}")

    monkeypatch.setattr(sbatch, "_slurm", refuse)
    said = "slurm_load_jobs error: Invalid job id specified"
    assert sbatch.job_state("7") == "GONE"
    said = "Unable to contact slurm controller"
    with pytest.raises(SetupError):
        sbatch.job_state("7")


def test_lines_of_hosts_are_told_whole_once_and_with_their_group(tmp_path):
    told = []
    follower = sbatch.Follower("7", tmp_path, told.append)
    (tmp_path / "cpu1.log").write_text("first\nheadrace event=topology host=cpu1 group=data_group role=data\nhalf")
    follower.read_logs()
    with (tmp_path / "cpu1.log").open("a") as log:
        log.write(" a line\n")
    (tmp_path / "slurm.log").write_text("srun: error\n")
    follower.read_logs()
    assert told[0] == "cpu1 ? | first" and sorted(told[2:]) == ["cpu1 data_group | half a line", "slurm | srun: error"]


@pytest.mark.parametrize(
    "command",
    [each for each in commands_of(ROOT / "docs" / "slurm.md") if "submit" in each.words],
    ids=lambda command: command.text[:60],
)
def test_the_commands_of_the_documents_make_a_script(command, source, capsys):
    words = [*command.after("headrace"), "--dry_run", f"--source_dir={source}"]
    assert headrace(words) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.startswith("#!/bin/bash\n")
