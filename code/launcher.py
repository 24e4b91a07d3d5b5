"""The entry point on every host of a job: on SageMaker, on Slurm and on simulated hosts."""

from headrace.host.main import entry_point

if __name__ == "__main__":
    entry_point(__file__)
