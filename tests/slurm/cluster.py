"""A Slurm cluster on this machine: one slurmctld, and a slurmd in the namespaces of each simulated host.

A host has its own network, host name and processes. If a host's first process is killed, its other processes end
too, as in a power cut. Folders are shared, as on a cluster with a shared file system.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

BRIDGE, NETWORK = "headrace-slurm"[:15], "10.78.0"
CONTROLLER = f"{NETWORK}.254"
START_TIMEOUT_S = 180.0
NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "unshare")
CONF = """
ClusterName=headrace
SlurmctldHost=controller({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=20
CredType=cred/munge
SlurmctldPort=6817
SlurmdPort=6818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType={proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0
KillWait=20
SlurmdTimeout=20
SlurmctldTimeout=10
MessageTimeout=5
MinJobAge=300
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=cpu[1-2] NodeAddr={network}.[1-2] CPUs=8 State=UNKNOWN Features=fast
NodeName=gpu[1-2] NodeAddr={network}.[11-12] CPUs=8 Gres=gpu:2 State=UNKNOWN
PartitionName=cpu Nodes=cpu[1-2] MaxTime=60 Default=YES
PartitionName=gpu Nodes=gpu[1-2] MaxTime=60
PartitionName=urgent Nodes=gpu[1-2] MaxTime=60 PriorityTier=2
"""
ADDRESSES = {"cpu1": 1, "cpu2": 2, "gpu1": 11, "gpu2": 12}
OWN_NAMESPACES = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
BECOME_HOST = """
read _
hostname {name}
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
ip addr add {address}/24 dev eth0
ip link set eth0 up
{slurmd} -D -N {name} -f {folder}/slurm.conf &
while :; do wait; sleep 1; done
"""


def missing() -> str:
    """Return why there can be no cluster on this machine; "" if there can."""
    if os.getuid():
        return "simulating Slurm nodes needs root"
    absent = [program for program in NEEDED if not shutil.which(program)]
    return f"no {', '.join(absent)}: apt-get install slurm-wlm munge iproute2" if absent else ""


@dataclass
class Cluster:
    """A running cluster. Slurm's commands reach it with the variables in `environ`."""

    folder: Path
    hosts: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def slurm(self, *command: str) -> str:
        """Run a Slurm command and return its output. Repeat the command if slurmctld is paused and does not answer."""
        for _ in range(6):
            done = subprocess.run(command, env=os.environ | self.environ, capture_output=True, text=True, check=False)
            if done.returncode == 0 or command[0] == "sbatch" or "timed out" not in done.stderr:
                break  # sbatch is not repeated: it may have submitted the job
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the jobs that wait, run or complete, a line each."""
        return self.slurm("squeue", "-h", "-o", "%A %T").splitlines()

    def start_host(self, name: str) -> None:
        """Start a host with its network and its slurmd."""
        address = f"{NETWORK}.{ADDRESSES[name]}"
        script = BECOME_HOST.format(name=name, address=address, folder=self.folder, slurmd=shutil.which("slurmd"))
        with (self.folder / f"{name}.console").open("ab") as console:
            host = subprocess.Popen(
                [*OWN_NAMESPACES, "/bin/sh", "-c", script],
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=console,
                start_new_session=True,
                env=os.environ | self.environ,
            )
        self.hosts[name] = host
        wait_until(lambda: os.readlink(f"/proc/{host.pid}/ns/net") != os.readlink("/proc/self/ns/net"), "a network")
        # A restarted host has the same MAC address, because other hosts remember it for a while.
        mac = f"02:00:00:00:00:{int(ADDRESSES[name]):02x}"
        _ip(f"link add to-{name} mtu 9001 type veth peer name eth0 address {mac} mtu 9001 netns {host.pid}")
        _ip(f"link set to-{name} master {BRIDGE} up")
        assert host.stdin
        host.stdin.write(b"go\n")
        host.stdin.close()

    def bring_back(self, name: str) -> None:
        """Restart a host, after it or its slurmd was killed, and wait until all nodes are idle."""
        if name in self.hosts:
            self.kill_host(name)
        self.start_host(name)
        wait_until(lambda: _idle(self) == len(ADDRESSES), "idle nodes")

    def kill_host(self, name: str) -> None:
        """Kill all processes of a host at once, as a power cut would."""
        host = self.hosts.pop(name)
        os.killpg(host.pid, signal.SIGKILL)
        host.wait()
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip(f"link del to-{name}")

    def processes(self, name: str) -> dict[int, str]:
        """Return a dict from process ID to command line, for a host's processes. The IDs are valid outside the host."""
        found = {}
        own = os.readlink(f"/proc/{self.hosts[name].pid}/ns/net")
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry}/ns/net") == own:
                    found[int(entry)] = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def job_processes(self) -> list[str]:
        """Return, for all hosts, the processes of running jobs and the processes that ended jobs left behind."""
        own = ("unshare ", "/bin/sh -c \nread", "sleep 1", shutil.which("slurmd") or "")
        return [
            f"{name}: {command}"
            for name in self.hosts
            for command in self.processes(name).values()
            if command and not command.startswith(own)
        ]

    def left_behind(self) -> list[str]:
        """Wait up to a minute for jobs' processes to end; return those that remain. slurmstepd ends after its job."""
        deadline = time.monotonic() + 60
        while (found := self.job_processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found


def wait_until(condition, what: str, timeout_s: float = START_TIMEOUT_S) -> None:
    """Wait until `condition` is true; after `timeout_s`, fail with `what` in the message."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {timeout_s:g} s"
        time.sleep(0.1)


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Yield a running cluster; end it at the context's end, with nothing left."""
    for part in ("state", "munge"):
        (folder / part).mkdir()
    os.chmod(folder / "munge", 0o700)
    (folder / "munge" / "key").write_bytes(os.urandom(128))
    os.chmod(folder / "munge" / "key", 0o400)
    cgroups = os.access("/sys/fs/cgroup/freezer", os.W_OK)
    proctrack = "proctrack/cgroup" if cgroups else "proctrack/linuxproc"
    conf = CONF.format(folder=folder, controller=CONTROLLER, network=NETWORK, proctrack=proctrack)
    (folder / "slurm.conf").write_text(conf)
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={'cgroup/v1' if cgroups else 'disabled'}\n")
    (folder / "gres.conf").write_text("NodeName=gpu[1-2] Name=gpu File=/dev/zero,/dev/full\n")
    lines = [f"{NETWORK}.{number}\t{name}\n" for name, number in ADDRESSES.items()]
    (folder / "hosts").write_text("127.0.0.1\tlocalhost\n" + f"{CONTROLLER}\tcontroller\n" + "".join(lines))
    cluster = Cluster(folder)
    with contextlib.suppress(subprocess.CalledProcessError):
        _ip(f"link del {BRIDGE}")  # left by tests that were killed
    try:
        _ip(f"link add {BRIDGE} type bridge")
        _ip(f"addr add {CONTROLLER}/24 dev {BRIDGE}")
        _ip(f"link set {BRIDGE} up")
        munge = folder / "munge"
        _serve(
            cluster,
            "munged",
            "-F",
            "--force",
            f"--key-file={munge}/key",
            f"--socket={folder}/munge.socket",
            f"--pid-file={munge}/pid",
            f"--log-file={munge}/log",
            f"--seed-file={munge}/seed",
        )
        wait_until((folder / "munge.socket").exists, "munge")
        # The controller's host name is not that of this machine.
        _serve(
            cluster, "unshare", "--uts", "sh", "-c", f"hostname controller; exec slurmctld -D -f {folder}/slurm.conf"
        )
        for name in ADDRESSES:
            cluster.start_host(name)
        wait_until(lambda: _idle(cluster) == len(ADDRESSES), "idle nodes")
        yield cluster
    finally:
        for name in list(cluster.hosts):
            cluster.kill_host(name)
        for server in reversed(cluster.servers):
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip(f"link del {BRIDGE}")
        for name in ADDRESSES if cgroups else ():
            for top, folders, _ in os.walk(f"/sys/fs/cgroup/freezer/slurm_{name}", topdown=False):
                for each in folders:
                    with contextlib.suppress(OSError):
                        os.rmdir(f"{top}/{each}")
                with contextlib.suppress(OSError):
                    os.rmdir(top)


def _idle(cluster: Cluster) -> int:
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%N %t"],
        env=os.environ | cluster.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    return len({line for line in done.stdout.splitlines() if line.endswith(" idle")})  # a line per node and partition


def _serve(cluster: Cluster, *command: str) -> None:
    with (cluster.folder / f"{Path(command[0]).name}.out").open("ab") as out:
        cluster.servers.append(
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=os.environ | cluster.environ
            )
        )


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)
