"""Simulated hosts have their own names, networks, ports and logs, and leave nothing behind.

Small programs take the place of the launcher.
"""

import json
import os
import pwd
import re
import signal
import subprocess
import sys
import uuid

import pytest

from tests.support import (
    JOB_TIMEOUT_S,
    ROOT,
    finish,
    namespaces_allowed,
    own_ports,
    processes_of,
    run_job,
    start,
    wait_for,
)

needs_namespaces = pytest.mark.skipif(not namespaces_allowed(), reason="this machine allows no user namespaces")

# Every host serves its name on the same port and asks all others for theirs.
ROLL_CALL = """
import http.server, json, os, pathlib, socket, sys, threading, time, urllib.request
config = json.loads(pathlib.Path("/opt/ml/input/config/resourceconfig.json").read_text())
me = socket.gethostname()
assert me == config["current_host"], me
done = set()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/": done.add(self.path)
        self.send_response(200); self.end_headers(); self.wfile.write(me.encode())
    def log_message(self, *_): pass
server = http.server.HTTPServer(("0.0.0.0", 6000), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
heard = {}
deadline = time.monotonic() + 50
while set(heard) < set(config["hosts"]) and time.monotonic() < deadline:
    for host in set(config["hosts"]) - set(heard):
        try:
            heard[host] = urllib.request.urlopen(f"http://{host}:6000", timeout=1).read().decode()
        except OSError:
            time.sleep(0.1)
pathlib.Path("/opt/ml/output/data/heard.json").write_text(json.dumps(heard))
print("heard", sorted(heard), flush=True)
untold = set(config["hosts"])  # a host ends once all have told it that they are done
while (untold or len(done) < len(config["hosts"])) and time.monotonic() < deadline:
    for host in sorted(untold):
        try:
            urllib.request.urlopen(f"http://{host}:6000/{me}", timeout=1).read()
            untold.remove(host)
        except OSError:
            pass
    time.sleep(0.1)
"""
WAITING = "import time; print('up', flush=True); time.sleep(600)"


def source(tmp_path, launcher):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "launcher.py").write_text(launcher)
    (folder / "headrace").mkdir()
    (folder / "headrace" / "__init__.py").touch()  # the folder counts as complete: headrace's own files are not added
    (folder / "train_dnn.py").write_text("")
    return f"--source_dir={folder}"


@needs_namespaces
def test_hosts_have_names_networks_and_ports_of_their_own(tmp_path):
    run = run_job(tmp_path, source(tmp_path, ROLL_CALL), "--isolation=namespaces")
    assert run.code == 1  # nobody wrote a summary, so the job cannot have succeeded
    for host in ("algo-1", "algo-2", "algo-3"):
        heard = json.loads((run.folder / host / "output/data/heard.json").read_text())
        assert heard == {"algo-1": "algo-1", "algo-2": "algo-2", "algo-3": "algo-3"}
        assert run.summary["hosts"][host]["exit_code"] == 0


@needs_namespaces
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_gets_the_same_hosts(tmp_path):
    nobody = pwd.getpwnam("nobody")
    as_nobody = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    try:
        subprocess.run(
            [sys.executable, str(ROOT / "start_job.py"), "--help"], capture_output=True, check=True, **as_nobody
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this checkout or its Python cannot be read by other users")
    flag = source(tmp_path, ROLL_CALL)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    output = tmp_path / "output"
    output.mkdir()
    os.chown(output, nobody.pw_uid, nobody.pw_gid)
    run = run_job(output, flag, "--isolation=namespaces", **as_nobody)
    assert (run.folder / "algo-3/output/data/heard.json").stat().st_uid == nobody.pw_uid
    assert "heard ['algo-1', 'algo-2', 'algo-3']" in run.log("algo-1")


def test_lines_are_logged_with_time_host_and_role(tmp_path):
    run = run_job(tmp_path, source(tmp_path, "print('hello'); print('2026-01-01T00:00:00.000Z algo-1 rank0 hi')"))
    first = run.log("algo-1").splitlines()[0].split(maxsplit=3)
    assert first[0].endswith("Z") and first[1:] == ["algo-1", "host", "hello"]
    assert "algo-1  rank0      hi" in run.output


def test_hosts_get_nothing_of_the_shells_cluster_network_or_encoding(tmp_path):
    told = "import os; print('got é', [name for name in os.environ if name.startswith(('SLURM', 'GLOO'))])"
    shell = {
        "SLURM_JOBID": "7",
        "SLURM_NODELIST": "n[1-2]",
        "GLOO_SOCKET_IFNAME": "ens5",
        "PYTHONIOENCODING": "latin-1",
    }
    run = finish(*start(tmp_path, source(tmp_path, told), "--no-is_hetero", env=os.environ | shell))
    assert re.search(r"algo-1 +host +got .+ \[\]", run.output), run.output


@pytest.mark.parametrize("isolation", ["auto", "loopback"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_every_host_and_leaves_nothing(tmp_path, isolation, signum):
    process, folder = start(tmp_path, source(tmp_path, WAITING), f"--isolation={isolation}")
    wait_for(lambda: all((folder / f"algo-{n}.log").is_file() for n in (1, 2, 3)), "three logs")
    wait_for(lambda: all("up" in (folder / f"algo-{n}.log").read_text() for n in (1, 2, 3)), "three hosts")
    process.send_signal(signum)
    run = finish(process, folder, 100)
    assert run.code == 1
    assert run.summary["interrupted"] is True


@pytest.mark.parametrize("isolation", ["auto", "loopback"])
def test_a_killed_start_job_leaves_nothing(tmp_path, isolation):
    process, folder = start(tmp_path, source(tmp_path, WAITING), f"--isolation={isolation}")
    wait_for(lambda: (folder / "algo-3.log").is_file() and "up" in (folder / "algo-3.log").read_text(), "three hosts")
    process.kill()
    process.communicate()
    wait_for(lambda: processes_of(folder.name) == [], "the end of all processes")


def test_the_first_failing_host_is_the_root_cause_without_a_leaders_word(tmp_path):
    failing = "import os, sys; sys.exit(5 if os.environ['SM_CURRENT_HOST'] == 'algo-2' else 0)"
    run = run_job(tmp_path, source(tmp_path, failing))
    assert run.code == 1
    assert run.summary["outcome"] == "failed"
    assert run.summary["root_cause"]["host"] == "algo-2"
    assert run.summary["root_cause"]["exit_code"] == 5


def test_a_run_is_never_written_over(tmp_path):
    (tmp_path / "twice").mkdir()
    run = run_job(tmp_path, "--isolation=loopback", job_name="twice")
    assert run.code == 2
    assert "exists already" in run.output


def test_where_namespaces_are_forbidden_the_cluster_says_so_and_goes_on(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "code")!r})
from headrace.errors import SetupError
from headrace.backends.local import namespaces
def forbidden(self): raise SetupError("Operation not permitted")
namespaces.Namespaces.__enter__ = forbidden
from headrace.cli.start import main
sys.exit(main(sys.argv[1:]))
"""
    flags = ["--no-is_cloud_job", f"--output_dir={tmp_path}", source(tmp_path, "print('ran')"), "--job_name=job"]
    ran = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True, check=False)
    assert "namespaces are not allowed here (Operation not permitted)" in ran.stdout
    assert "ran" in (tmp_path / "job" / "algo-3.log").read_text()
    forced = subprocess.run(
        [sys.executable, "-c", code, *flags, "--job_name=other", "--isolation=namespaces"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert forced.returncode == 1
    assert "use --isolation loopback" in forced.stderr


def run_impatiently(tmp_path, launcher, for_s=3600):
    """Run a job with a `LEFT_BEHIND_TIMEOUT_S` of one second. After `for_s` seconds, the job sets it to 60 seconds."""
    code = f"""
import sys, threading
sys.path.insert(0, {str(ROOT / "code")!r})
from headrace.backends.local import cluster
cluster.LEFT_BEHIND_TIMEOUT_S = 1.0
patience = threading.Timer({for_s}, setattr, (cluster, "LEFT_BEHIND_TIMEOUT_S", 60.0))
patience.daemon = True
patience.start()
from headrace.cli.start import main
sys.exit(main(sys.argv[1:]))
"""
    name = f"job-{uuid.uuid4().hex[:8]}"
    flags = ["--no-is_cloud_job", "--isolation=loopback", f"--output_dir={tmp_path}", f"--job_name={name}"]
    command = [sys.executable, "-c", code, *flags, source(tmp_path, launcher)]
    with own_ports():
        result = subprocess.run(command, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=False)
    assert processes_of(name) == []
    return result, json.loads((tmp_path / name / "summary.json").read_text())


def test_a_host_that_ends_early_does_not_hurry_the_others(tmp_path):
    launcher = "import os, time\nif os.environ['SM_CURRENT_HOST'] == 'algo-2': os._exit(9)\ntime.sleep(10)"
    _, summary = run_impatiently(tmp_path, launcher, for_s=6)  # algo-1 and the leader end seconds apart
    assert {host: record["exit_code"] for host, record in summary["hosts"].items()} == {
        "algo-1": 0,
        "algo-2": 9,
        "algo-3": 0,
    }
    assert summary["root_cause"]["host"] == "algo-2"


def test_hosts_that_outlive_the_leader_are_killed_and_not_blamed(tmp_path):
    launcher = "import os, time\nif os.environ['SM_CURRENT_HOST'] == 'algo-3': os._exit(7)\ntime.sleep(600)"
    result, summary = run_impatiently(tmp_path, launcher)
    assert "killing algo-1, algo-2: still running after other hosts have ended" in result.stdout
    assert summary["hosts"]["algo-1"]["exit_code"] == 137
    assert (summary["root_cause"]["host"], summary["root_cause"]["exit_code"]) == ("algo-3", 7)


def test_runs_and_channels_inside_the_source_dir_are_not_copied_to_hosts(tmp_path):
    folder = tmp_path / "source"
    flag = source(tmp_path, "print('x')")
    (folder / "data").mkdir()
    (folder / "data" / "large").touch()
    for name in ("one", "two"):
        run = run_job(
            tmp_path, flag, f"--output_dir={folder / 'runs'}", f"--channel=training={folder / 'data'}", job_name=name
        )
        assert run.code == 1  # nobody wrote a summary
    copied = sorted(path.name for path in (folder / "runs" / "two" / "algo-1" / "code").iterdir())
    assert copied == ["headrace", "launcher.py", "train_dnn.py"]
