"""Fuzz both ends of the transfer under sanitizers: `python -m tests.fuzz [--seconds 120] [--first 0]`."""

import argparse
import hashlib
import os
import secrets
import subprocess
import sys
from pathlib import Path

from headrace.tensorflow.service.transfer import SOURCES, build

from tests.support import ROOT

SOURCE = Path(__file__).with_name("transfer.cc")
TRANSFER = Path(build.__file__).parent
OUT = ROOT / ".fuzz"
# Checks of null references and of types at run time are off: TensorFlow's headers do not compile with them.
SANITIZERS = [
    "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer",
    "-fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute,vptr", "-fdelete-null-pointer-checks",
]  # fmt: skip
FINDINGS = (250159220065769,)
"""Numbers (seeds) of cases that failed once; these run first. If the generator changes, a number gives another case."""
ELEMENT_BYTES = 64 << 20
"""Maximum number of bytes that an element may have here, so that a case ends soon."""
# Ignore leaks and other faults of TensorFlow's own start-up.
OPTIONS = "detect_leaks=0:detect_odr_violation=0:alloc_dealloc_mismatch=0:allocator_may_return_null=1"


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long (default: %(default)g)")
    parser.add_argument("--first", type=int, default=None, help="the first case's number (default: any)")
    parser.add_argument("--cases", type=int, default=0, help="stop after this number of cases, not after --seconds")
    given = parser.parse_args(argv)
    program = compiled()
    first = secrets.randbits(48) if given.first is None else given.first
    print(f"fuzz: from case {first}", flush=True)
    environ = os.environ | {"ASAN_OPTIONS": OPTIONS, "UBSAN_OPTIONS": "print_stacktrace=1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    limit = str(given.cases) if given.cases else str(-given.seconds)
    for begin, end in [*((finding, "1") for finding in FINDINGS), (first, limit)]:
        ended = subprocess.run([program, str(begin), end], env=environ, check=False)
        if ended.returncode:
            print(f"fuzz: a finding (exit code {ended.returncode}): --first CASE --cases 1 repeats it", file=sys.stderr)
            return 1
    return 0


def compiled():
    """Return the program. Compile it first if its sources or flags have changed."""
    digest = hashlib.sha256(SOURCE.read_bytes())
    for name in SOURCES:
        digest.update((TRANSFER / name).read_bytes())
    digest.update(" ".join(SANITIZERS).encode())
    program = OUT / f"transfer-{digest.hexdigest()[:16]}"
    if not program.is_file():
        OUT.mkdir(exist_ok=True)
        print("fuzz: compiling with sanitizers (a minute) …", flush=True)
        command = ["g++", *SANITIZERS, f"-I{TRANSFER}", f"-DHEADRACE_MOST_ELEMENT_BYTES={ELEMENT_BYTES}", str(SOURCE)]
        subprocess.run([*command, "-o", str(program), *build.compile_flags()], check=True)
    return program


if __name__ == "__main__":
    sys.exit(main())
