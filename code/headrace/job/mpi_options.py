"""Check the user's options for mpirun: at submission, and again on each host."""

from __future__ import annotations

import shlex

from headrace.errors import InputError

OWN_MPI_PARAMETERS = frozenset(
    {"plm_rsh_agent", "plm_rsh_no_tree_spawn", "orte_tmpdir_base", "btl_vader_backing_directory"}
)
"""Parameters of Open MPI that users must not set."""
_REFUSED = dict.fromkeys(
    ("--", "-V", "--version", "-h", "--help", "-?"), "with this option, mpirun runs no script; leave the option out"
)
_REFUSED |= dict.fromkeys(("-n", "--n", "-np", "--np", "-c"), "give --processes_per_host instead")
"""Options of mpirun that users must not give, each with the reason."""


def split_mpi_options(text: str) -> tuple[str, ...]:
    """Return mpirun's arguments from `--custom_mpi_options`. The toolkit's `--NCCL_DEBUG X` becomes `-x NCCL_DEBUG=X`.

    Raises:
        InputError: a quote is not closed, the first word does not begin with `-`, or a word is an option or parameter
            that users must not set.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"--custom_mpi_options {text!r}: {error}") from error
    if words and not words[0].startswith("-"):
        raise InputError(f"--custom_mpi_options {text!r}: the first word must be an option, not {words[0]!r}")
    if taken := sorted(set(words) & OWN_MPI_PARAMETERS):
        raise InputError(f"--custom_mpi_options {text!r}: leave out {taken[0]}, which headrace's launcher sets")
    for word in filter(_REFUSED.get, words):
        raise InputError(f"--custom_mpi_options {text!r}: {word!r}: {_REFUSED[word]}")
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--NCCL_DEBUG=") else [word])]
    while "--NCCL_DEBUG" in words:
        place = words.index("--NCCL_DEBUG")
        words[place : place + 2] = ["-x", f"NCCL_DEBUG={''.join(words[place + 1 : place + 2]) or 'INFO'}"]
    return tuple(words)
