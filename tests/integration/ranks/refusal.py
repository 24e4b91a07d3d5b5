"""What the scripts of this folder share."""

from headrace.errors import InputError
from headrace.tensorflow import data


def refused(dataset, **how):
    """Why `data.distribute` does not take a dataset."""
    try:
        data.distribute(dataset, **how)
    except InputError as error:
        return str(error)
    raise AssertionError("it was accepted")
