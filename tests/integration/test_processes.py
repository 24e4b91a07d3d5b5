"""A supervisor ends all processes that it or its children started. The tests start real processes."""

import ctypes
import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
from headrace.host.log import HostLog
from headrace.host.supervisor import ChildSpec, Supervisor
from headrace.linux import prctl, processes

from tests.support import ROOT, WAIT_S, wait_for

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
FORKING = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
print('up', flush=True)
time.sleep(600)
"""
GRACE_S = 0.5


def alive(pid):
    return psutil.pid_exists(pid) and processes.is_alive(psutil.Process(pid))


def spec(code, tmp_path, **options):
    return ChildSpec("worker", "worker", [sys.executable, "-c", code], dict(os.environ), tmp_path, **options)


def supervise(*codes, tmp_path, **options):
    """Start the programs, wait until all are up, and end them. Return the log and the pids of their processes."""
    out = io.StringIO()
    with Supervisor(HostLog("algo-1", out), 3, GRACE_S) as supervisor:
        for code in codes:
            supervisor.start(spec(code, tmp_path, **options))
        wait_for(lambda: out.getvalue().count(" up\n") == len(codes), "start of the programs")
        living = [process.pid for process in processes.descendants()]
    return out.getvalue(), living


def test_a_child_that_ignores_sigterm_is_killed_at_the_deadline(tmp_path):
    log, pids = supervise(STUBBORN, tmp_path=tmp_path)
    assert not any(alive(pid) for pid in pids)
    assert "were killed" in log


def test_a_grandchild_in_its_own_session_is_ended_too(tmp_path):
    _, pids = supervise(FORKING, tmp_path=tmp_path)
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_a_stopped_child_does_not_delay_teardown_beyond_the_deadline(tmp_path):
    out = io.StringIO()
    with Supervisor(HostLog("algo-1", out), 3, GRACE_S) as supervisor:
        child = supervisor.start(spec("import time; print('up', flush=True); time.sleep(600)", tmp_path))
        wait_for(lambda: " up\n" in out.getvalue(), "start")
        os.kill(child.process.pid, signal.SIGSTOP)
    assert not alive(child.process.pid)


def test_children_die_with_a_supervisor_that_is_killed(tmp_path):
    code = (
        "import sys, time; sys.path.insert(0, 'code')\n"
        "from headrace.host.log import HostLog\n"
        "from headrace.host.supervisor import ChildSpec, Supervisor\n"
        "from pathlib import Path\n"
        "s = Supervisor(HostLog('algo-1'), 0, 1)\n"
        "argv = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "c = s.start(ChildSpec('worker', 'worker', argv, {}, Path('/')))\n"
        "print(c.process.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        wait_for(lambda: not alive(pid), "the child's death")


def test_output_arrives_whole_with_time_host_and_role(tmp_path):
    log, _ = supervise("import sys, time; print('a\\rb'); print('up', flush=True); time.sleep(600)", tmp_path=tmp_path)
    line = next(line for line in log.splitlines() if line.endswith(" b"))
    assert line.split()[1:] == ["algo-1", "worker", "b"]


def test_what_follows_a_long_progress_bar_is_read(tmp_path):
    out, events = io.StringIO(), []
    code = (
        "import sys; sys.stdout.write('begin ' + ''.join(f'\\r{n:5d} of 9000' for n in range(9000)))\n"
        "print('headrace event=done', flush=True); import time; time.sleep(600)"
    )
    with Supervisor(HostLog("algo-1", out), 1, GRACE_S) as supervisor:
        supervisor.start(spec(code, tmp_path, on_event=events.append))
        wait_for(lambda: events, "the event")
    assert [event.name for event in events] == ["done"]
    assert [line.split(maxsplit=3)[3] for line in out.getvalue().splitlines()] == ["8999 of 9000headrace event=done"]


def test_a_dead_server_comes_back_and_its_last_words_are_kept(tmp_path):
    out = io.StringIO()
    with Supervisor(HostLog("algo-1", out), 1, GRACE_S) as supervisor:
        supervisor.start(spec("print('last words'); raise SystemExit(7)", tmp_path, restart=True))
        (ended,) = wait_for(supervisor.poll, "the end of the restarts")
    assert ended.root_cause("algo-1").exit_code == 7
    assert ended.tail[-1] == "last words"
    assert out.getvalue().count("last words") == 2


def test_a_child_of_low_priority_yields_with_its_whole_session(tmp_path):
    """The kernel may share processors equally among sessions. Then a process's niceness counts only in its session."""
    code = "import os; print(os.nice(0), open('/proc/self/autogroup').read().strip(), 'up', flush=True)"
    if not os.path.exists("/proc/self/autogroup"):
        code = "import os; print(os.nice(0), '/autogroup-0 nice 19 up', flush=True)"
    out, _ = supervise(code + "; import time; time.sleep(600)", tmp_path=tmp_path, nice=19)
    assert " 19 /autogroup-" in out and "nice 19 up" in out


def test_a_child_is_as_its_program_would_be_without_the_settings(tmp_path):
    shell = ["sh", "-c", "grep -h -e SigIgn -e SigBlk /proc/self/status; echo up; exec sleep 600"]
    direct = subprocess.run([*shell[:2], shell[2].partition("; exec")[0]], capture_output=True, text=True, check=True)
    out = io.StringIO()
    with Supervisor(HostLog("algo-1", out), 3, GRACE_S) as supervisor:
        supervisor.start(ChildSpec("worker", "worker", shell, dict(os.environ), tmp_path))
        wait_for(lambda: " up\n" in out.getvalue(), "start")
    found = [line.split(maxsplit=3)[3] for line in out.getvalue().splitlines() if " Sig" in line]
    assert found == direct.stdout.splitlines()[:2]


def test_a_server_whose_program_is_missing_is_named_and_not_restarted(tmp_path):
    out = io.StringIO()
    with Supervisor(HostLog("algo-1", out), 3, GRACE_S) as supervisor:
        supervisor.start(ChildSpec("worker", "worker", ["/no/such"], dict(os.environ), tmp_path, restart=True))
        (ended,) = wait_for(supervisor.poll, "the end")
    assert "cannot start /no/such: No such file or directory" in ended.root_cause("algo-1").message
    assert "restarting" not in out.getvalue()


def test_a_child_may_use_the_processors_that_it_is_given_and_no_others():
    cpu = min(os.sched_getaffinity(0))
    shown = [sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"]
    done = subprocess.run(prctl.child_command(shown, cpus={cpu}), capture_output=True, text=True, check=True)
    assert done.stdout == f"{{{cpu}}}\n"


LEAVES = """
import atexit, multiprocessing, subprocess, sys
sys.path.insert(0, 'code')
from headrace.linux.processes import end_children
atexit.register(end_children)
multiprocessing.set_start_method('spawn')
lock = multiprocessing.Lock()  # with it, Python's own tracker of resources
program = 'import time; print(flush=True); time.sleep(600)'
left = subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.PIPE)
left.stdout.readline()  # from here on Linux shows its command
"""


def test_a_program_that_a_script_leaves_running_does_not_outlive_it():
    done = subprocess.run(
        [sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=WAIT_S, check=True, cwd=ROOT
    )
    assert done.stdout.count("which the script started and left running") == 1 and "time.sleep(600)" in done.stdout
    assert done.stderr == ""


def test_a_process_waits_for_its_busy_threads_of_a_name_and_for_no_others():
    resting, over = threading.Event(), threading.Event()

    block = bytes(64 << 20)

    def work(name, until):
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME: before 3.14, Python tells Linux no thread names
        while not until():
            hashlib.sha256(block).digest()  # releases the GIL: a thread that waits for the GIL would seem idle
        resting.set()
        over.wait()

    awaited_until = time.monotonic() + 1.0
    cases = {b"pt_gloo_runloop": lambda: time.monotonic() > awaited_until, b"another": over.is_set}
    threads = [threading.Thread(target=work, args=case, daemon=True) for case in cases.items()]
    for thread in threads:
        thread.start()
    tasks = Path("/proc/self/task")
    wait_for(lambda: any(b"pt_gloo" in each.read_bytes() for each in tasks.glob("*/comm")), "the thread's name")
    processes.wait_for_threads("pt_gloo", 60.0)
    assert resting.is_set() and threads[1].is_alive()
    processes.wait_for_threads("", 0.1)  # "" selects all threads. Some are busy, so the wait lasts to its limit
    over.set()
    for thread in threads:
        thread.join()
