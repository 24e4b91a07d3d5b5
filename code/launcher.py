"""The entry point on every host: SageMaker starts it, so does the simulated cluster."""

from headrace.host.main import entry_point

if __name__ == "__main__":
    entry_point(__file__)
