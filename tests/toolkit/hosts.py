"""Simulated SageMaker hosts, made from a CreateTrainingJob request. The toolkit's `train` runs the job's code there."""

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Collection
from pathlib import Path

import psutil
from headrace.backends.local.namespaces import Namespaces
from headrace.backends.sagemaker.pack import files_to_send, pack_files
from headrace.events import parse_event
from headrace.linux.prctl import child_command

from tests.support import ROOT, wait_for

SSHD = "/usr/sbin/sshd"
END_S = 600
"""Limit in seconds on waits for hosts. It is long because the toolkit itself sleeps for a minute."""
IMAGE_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    # AWS's image does not set this variable. It is set here since hosts of several jobs share the processors.
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def why_not() -> str:
    """Return what this machine lacks to run these hosts; empty if it lacks nothing."""
    if os.geteuid():
        return "hosts with sshd and processes of their own need root"
    if not os.access(SSHD, os.X_OK):
        return f"the toolkit starts MPI over sshd: apt-get install openssh-server brings {SSHD}"
    probe = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else f"no namespaces: {probe.stderr.decode().strip()}"


def submit(job_name: str, *flags: str) -> dict:
    """Return start_job.py's request for a job with network isolation. The job's hosts read the source from a folder."""
    account = ["--role=arn:aws:iam::123456789012:role/headrace", "--region=us-east-1", "--enable_network_isolation"]
    command = [sys.executable, str(ROOT / "start_job.py"), "--dry_run", f"--job_name={job_name}", *account, *flags]
    printed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert printed.returncode == 0, printed.stderr
    return json.loads(printed.stdout)


class ToolkitJob:
    """A job on hosts like SageMaker's. Use it in a `with` block: at the end of the block, all hosts end."""

    def __init__(
        self, request: dict, source: Path, folder: Path, shuffle_hosts: bool = False, has_tensorflow: bool = True
    ):
        """Make the folders and the network of the hosts.

        Args:
            shuffle_hosts: list hosts and groups in another order in each host's resourceconfig.json.
            has_tensorflow: False hides TensorFlow, which the toolkit takes five seconds to import.
        """
        self.name, self.folder, self._request = request["TrainingJobName"], folder, request
        self._shuffle_hosts, self._has_tensorflow = shuffle_hosts, has_tensorflow
        resources = request["ResourceConfig"]
        groups = resources.get("InstanceGroups") or [
            {
                "InstanceGroupName": "",
                "InstanceType": resources["InstanceType"],
                "InstanceCount": resources["InstanceCount"],
            }
        ]
        members = [group for group in groups for _ in range(group["InstanceCount"])]
        self.hosts = {f"algo-{number}": group for number, group in enumerate(members, 1)}
        self.folder.mkdir(parents=True)
        pack_files(files_to_send(source), folder / "sourcedir.tar.gz")
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")]
        subprocess.run(key, check=True)
        self._make_bin()
        self._network = Namespaces(folder, list(self.hosts), self.name)
        self._running: dict[str, subprocess.Popen] = {}

    def __enter__(self):
        self._network.__enter__()
        return self

    def __exit__(self, *_):
        for process in self._running.values():
            process.kill()  # `--kill-child` then ends all processes of the host
            process.wait()
        self._network.__exit__()

    def start(self, *hosts: str) -> None:
        """Start these hosts, or all if none are given."""
        for host in hosts or self.hosts:
            self._start(host)

    def wait(self, without: Collection[str] = ()) -> dict[str, int]:
        """Wait for all hosts, except those in `without`, and return their exit codes."""
        deadline = time.monotonic() + END_S
        awaited = {host: process for host, process in self._running.items() if host not in without}
        for host, process in awaited.items():
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{host} has not ended within {END_S} s:\n{self.tails()}") from None
        return {host: process.returncode for host, process in awaited.items()}

    def log(self, host: str) -> str:
        return self._log_path(host).read_text(errors="replace")

    def events(self, name: str):
        """Return all events with this name, from the logs of all hosts."""
        lines = [line for host in self._running for line in self.log(host).splitlines()]
        return [event for event in map(parse_event, lines) if event and event.name == name]

    def base_dir(self, host: str) -> Path:
        """Return the folder that is /opt/ml on the host."""
        return self.folder / host

    def kill(self, host: str) -> None:
        """Kill all processes of a host at once."""
        self._running[host].kill()

    def process(self, host: str, words: re.Pattern[str]) -> psutil.Process:
        """Return the only process on a host whose command line matches `words`."""
        found = []
        for each in self.processes(host):
            with contextlib.suppress(psutil.NoSuchProcess):  # the toolkit's own children are short-lived
                if words.search(" ".join(each.cmdline())):
                    found.append(each)
        (process,) = found
        return process

    def processes(self, host: str) -> list[psutil.Process]:
        """Return all living processes of a host."""
        return psutil.Process(self._running[host].pid).children(recursive=True)

    def wait_for_steps(self) -> None:
        """Wait until ranks make steps and the leader has heard of every host."""
        is_whole = lambda: self.events("step") and self.events("workers_ready")  # noqa: E731
        wait_for(lambda: is_whole() or self._ended(), "a step with all hosts", END_S)
        assert not self._ended(), f"{self._ended()} ended early:\n{self.tails()}"

    def _ended(self) -> list[str]:
        return [host for host, process in self._running.items() if process.poll() is not None]

    def tails(self) -> str:
        return "\n".join(f"== {host}\n{self.log(host)[-3000:]}" for host in self._running)

    def _log_path(self, host: str) -> Path:
        return self.folder / f"{host}.log"

    def _start(self, host: str) -> None:
        self._write_folder(host)
        network = os.open(f"/proc/{self._network._switch.pid}/ns/net", os.O_RDONLY)
        kept = {str(ROOT), sys.prefix, sys.base_prefix, str(self.folder)}
        setup = [str(network), host, self._network.addresses[host], str(self.base_dir(host))]
        setup += [str(self._network.hosts_file), str(self.folder), ":".join(sorted(kept))]
        isolated = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        # As in AWS's image, the container's first process is a shell, which reaps orphaned processes.
        shell = ["bash", "-c", "train; exit $?"]
        command = [
            "unshare",
            *isolated,
            sys.executable,
            str(Path(__file__).with_name("enter.py")),
            *setup,
            "--",
            *shell,
        ]
        scripts = sysconfig.get_path("scripts")
        environ = {
            **IMAGE_ENVIRONMENT,
            **self._request["Environment"],
            "PATH": f"{self.folder / 'bin'}:{scripts}:{os.defpath}",
            "OPAL_PREFIX": sys.prefix,  # PyPI's Open MPI is relocated
            "TRAINING_JOB_NAME": self.name,
            "TRAINING_JOB_ARN": f"arn:aws:sagemaker:us-east-1:123456789012:training-job/{self.name}",
            "AWS_REGION": "us-east-1",
            "CURRENT_HOST": host,
            **({} if self._has_tensorflow else {"PYTHONPATH": str(self.folder / "bin")}),
        }
        with open(self._log_path(host), "wb") as log:
            self._running[host] = subprocess.Popen(
                child_command(command),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[network],
                start_new_session=True,
            )
        os.close(network)

    def _write_folder(self, host: str) -> None:
        base = self.base_dir(host)
        for name in ("input/config", "input/data/code", "model", "output/data", "checkpoints"):
            (base / name).mkdir(parents=True)
        os.link(self.folder / "sourcedir.tar.gz", base / "input/data/code/sourcedir.tar.gz")
        for name, content in {
            "resourceconfig": self._resource_config(host),
            "hyperparameters": self._request["HyperParameters"],
            "inputdataconfig": {"code": {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated"}},
        }.items():
            (base / "input/config" / f"{name}.json").write_text(json.dumps(content))

    def _resource_config(self, host: str) -> dict:
        shuffle = random.Random(f"{self.name} {host}").sample

        def in_some_order(things):
            return shuffle(things, len(things)) if self._shuffle_hosts else things

        group = self.hosts[host]
        config = {
            "current_host": host,
            "current_instance_type": group["InstanceType"],
            "hosts": in_some_order(list(self.hosts)),
            "network_interface_name": "eth0",
        }
        if group["InstanceGroupName"]:
            groups = {each["InstanceGroupName"]: each for each in self.hosts.values()}
            config["current_group_name"] = group["InstanceGroupName"]
            config["instance_groups"] = [
                {
                    "instance_group_name": name,
                    "instance_type": groups[name]["InstanceType"],
                    "hosts": in_some_order([host for host, its in self.hosts.items() if its is groups[name]]),
                }
                for name in in_some_order(list(groups))
            ]
        else:
            config["current_group_name"] = "homogeneousCluster"
            config["instance_groups"] = [
                {"instance_group_name": "homogeneousCluster", "instance_type": group["InstanceType"],
                 "hosts": config["hosts"]}
            ]  # fmt: skip
        return config

    def _make_bin(self) -> None:
        """Write a shell script that calls the real mpirun, as in AWS's image."""
        script = self.folder / "bin" / "mpirun"
        script.parent.mkdir()
        script.write_text(f'#!/bin/bash\n{sysconfig.get_path("scripts")}/mpirun --allow-run-as-root "$@"\n')
        script.chmod(0o755)
        if not self._has_tensorflow:
            script.with_name("tensorflow.py").write_text("raise ImportError('not in this image')\n")
