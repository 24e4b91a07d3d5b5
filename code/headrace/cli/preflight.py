"""`headrace preflight`: a job whose ranks try MPI with each other and do nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cli import start

USAGE = """usage: headrace preflight [FLAG ...]

Runs a job of dnn hosts alone whose ranks try MPI and then end: who is where, messages between hosts and within each,
broadcast, gather and average, allreduce. Each answer is checked and timed; a table and preflight.json tell what was
found. A slow link is marked; a rank or link that gives no sign ends the job by name.

Takes start_job.py's flags: --no-is_cloud_job for this machine, --num_of_dnn_instances, --processes_per_host,
--dnn_instance_type, --distribution, ..., and --yes, as headrace submit does; --hyperparameter preflight_timeout_s=S
for another deadline (60).
To try MPI before a training: start_job.py --preflight ..."""


def main(argv: Sequence[str]) -> int:
    """Run the job; return the exit code, like start_job.py: 0 all is well, 1 it is not, 2 the arguments are wrong."""
    if "-h" in argv or "--help" in argv:
        print(USAGE)
        return 0
    return start.preflight(argv)
