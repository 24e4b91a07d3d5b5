"""Write a job as an sbatch script. Each group is a component of a heterogeneous job; each node runs one launcher."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from headrace import __version__
from headrace.backends.slurm.slurm_options import WORDS, SlurmOptions
from headrace.cluster.run_files import SUMMARY
from headrace.cluster.slurm import CHANNELS_VARIABLE, GROUPS_VARIABLE, PORTS_VARIABLE, RUN_VARIABLE
from headrace.cluster.topology import DATA_GROUP
from headrace.job.settings import MPI_OPTIONS_VARIABLE, VERSION_VARIABLE
from headrace.job.spec import InstanceGroup, JobSpec, as_flag

BATCH_LOG = "slurm.log"
"""Name of the file in the run's folder for the output of Slurm and of the batch script."""


def build_script(spec: JobSpec, options: SlurmOptions) -> str:
    """Return the batch script. It holds no secret: hosts read the secret from a file in the run's folder."""
    groups = sorted(spec.groups, key=lambda group: group.name == DATA_GROUP)
    limits = [f"--{name}={value}" for name in ("time", "account", "qos") if (value := getattr(options, name))]
    each = ["--no-kill", "--requeue" if options.requeue else "--no-requeue", *limits]
    own = [
        f"--job-name={spec.job_name}",
        f"--output={options.run / BATCH_LOG}",
        "--open-mode=append",
        f"--signal=TERM@{options.stop_before_end_s}",
    ]
    components = [_directives([*_component(group, options), *each]) for group in groups]
    head = "\n#SBATCH hetjob\n".join(components)
    pairs = sorted(spec.all_hyperparameters().items())
    arguments = " \\\n  ".join(shlex.join(as_flag(*pair)) for pair in pairs)
    steps = f" --het-group={','.join(map(str, range(len(groups))))}" if len(groups) > 1 else ""
    return f"""#!/bin/bash
# {spec.job_name}: {" + ".join(f"{group.count} {group.name}" for group in groups)}; you may edit this and run sbatch.
# The dnn hosts are the first component: Slurm runs this script on that component's first node, the leader's.
{_directives(own)}
{head}

{_exports(spec, options, [group.name for group in groups])}

trap : TERM  # launchers handle a stop request; this script waits until they end
srun{steps} --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 --mpi=none --cpu-bind=none \\
  --open-mode=append --output="${RUN_VARIABLE}/%N.log" \\
  {shlex.quote(options.python)} "${RUN_VARIABLE}/code/launcher.py" \\
  {arguments}
# A job can succeed although a data node was lost: the leader's summary decides, not srun's exit status.
grep -q '"outcome": "succeeded"' "${RUN_VARIABLE}/{SUMMARY}"
"""


def _exports(spec: JobSpec, options: SlurmOptions, groups: Iterable[str]) -> str:
    values = {
        RUN_VARIABLE: str(options.run),
        GROUPS_VARIABLE: ",".join(groups),
        CHANNELS_VARIABLE: "\n".join(f"{c.name}={c.uri}@{','.join(c.groups)}" for c in spec.channels),
        # Number of ports for a dispatcher and the workers. A job that is alone on its nodes uses the usual ports.
        PORTS_VARIABLE: "" if options.dnn.exclusive else str(max(spec.num_of_data_workers, 1) + 1),
        MPI_OPTIONS_VARIABLE: spec.custom_mpi_options,
        VERSION_VARIABLE: __version__,
    }
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items() if value)


def _component(group: InstanceGroup, options: SlurmOptions) -> list[str]:
    asked = options.data if group.name == DATA_GROUP else options.dnn
    words = [f"--{name.replace('_', '-')}={value}" for name in WORDS if (value := getattr(asked, name))]
    return [f"--nodes={group.count}", "--ntasks-per-node=1", *words, *["--exclusive"] * asked.exclusive]


def _directives(words: Iterable[str]) -> str:
    return "\n".join(f"#SBATCH {word}" for word in words)
