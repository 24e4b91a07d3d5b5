"""A function that scripts in this folder share."""

from headrace.errors import InputError
from headrace.tensorflow import data


def refused(dataset, **how):
    """Return the reason why `data.distribute` refuses a dataset."""
    try:
        data.distribute(dataset, **how)
    except InputError as error:
        return str(error)
    raise AssertionError("it was accepted")
