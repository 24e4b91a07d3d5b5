"""A process that must stay what it was started as, and what it starts."""

import subprocess
import sys

from tests.support import ROOT

SCRIPT = """
import os, subprocess, sys
from headrace.errors import InputError
from headrace.rank.no_exec import refuse_exec

refuse_exec()
for replace in (lambda: os.execv(sys.executable, [sys.executable]), lambda: os.execlp("true", "true"),
                lambda: os.execvpe("true", ["true"], {})):
    try:
        replace()
    except InputError as error:
        print("os.exec" in str(error))
child = os.fork()
if not child:
    os.execlp("true", "true")
print(os.waitpid(child, 0)[1], subprocess.run("true").returncode)
"""


def test_a_process_does_not_replace_itself_and_its_children_may():
    command = [sys.executable, "-c", SCRIPT]
    printed = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "code"), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert printed.stdout.split() == ["True"] * 3 + ["0", "0"], printed.stderr
