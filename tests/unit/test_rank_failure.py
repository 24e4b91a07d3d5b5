"""Each rank that raises leaves a file. The first rank to raise on a host is the root cause."""

import argparse
import errno
import sys
from pathlib import Path

import pytest
from headrace.errors import InputError
from headrace.rank.failure import first_failure, in_a_line, leave_failure


def test_the_rank_that_raised_first_is_found_with_its_traceback(tmp_path):
    for rank in (3, 1):
        leave_failure(tmp_path, rank, 1, f"ValueError: of rank {rank}", ["Traceback …", f"ValueError: of rank {rank}"])
    cause = first_failure(tmp_path, "algo-2")
    assert (cause.host, cause.process, cause.exit_code) == ("algo-2", "rank3", 1)
    assert cause.message == "raised ValueError: of rank 3"
    assert cause.log_tail == ("Traceback …", "ValueError: of rank 3")


def test_without_files_or_with_broken_ones_there_is_no_root_cause(tmp_path):
    assert first_failure(tmp_path / "none", "algo-1") is None
    for number, text in enumerate(("", "[]", '{"rank": "x"}', '{"rank": 1}')):
        (tmp_path / f"failed-rank{number}.json").write_text(text)
    assert first_failure(tmp_path, "algo-1") is None


def test_a_rank_without_a_launcher_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    leave_failure(Path(), 0, 1, "ValueError", [])
    assert list(tmp_path.iterdir()) == []


GRAPH_ERROR = """Graph execution error:

Detected at node compile_loss/SparseSoftmaxCrossEntropyWithLogits defined at (most recent call last):
  File "train.py", line 20, in <module>

Received a label value of 7 which is outside the valid range of [0, 5).  Label values: 7 3
\t [[{{node compile_loss/sparse_categorical_crossentropy}}]] [Op:__inference_one_step_on_data_512]"""

OUT_OF_MEMORY = """Graph execution error:

Detected at node conv2d defined at (most recent call last):
<stack traces unavailable>
OOM when allocating tensor with shape[64,256,56,56]
\t [[{{node conv2d}}]]
Hint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom.
"""
SPAWNED = """

-- Process 0 terminated with the following error:
Traceback (most recent call last):
  File "train.py", line 3, in train
    raise ValueError("no luck")
ValueError: no luck
"""
SEVERAL = """Graph execution error:

2 root error(s) found.
  (0) INVALID_ARGUMENT: the cause
\t [[{{node a}}]]
  (1) CANCELLED: a consequence
0 successful operations.
0 derived errors ignored."""


OTHER_KEYS = """Error(s) in loading state_dict for Linear:
\tMissing key(s) in state_dict: "weight", "bias".
\tUnexpected key(s) in state_dict: "module.weight". """
NCCL = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage, NCCL version 2.27.5
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 8000"""


class DistBackendError(RuntimeError):
    """An exception with the same name as torch's DistBackendError."""


LOADER_WORKER = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/lib/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)  # type: ignore[possibly-undefined]
           ^^^^^^^^^^^^^^^^^^^^
  File "train.py", line 8, in __getitem__
ValueError: boom
more
"""


USER_CODE = """in user code:

    File "/opt/ml/code/train.py", line 7, in g  *
        return f(tf.cast(x, tf.float32))
    File "/usr/lib/python3/site-packages/keras/src/trainer.py", line 5, in f  *
        return x.nothing

    AttributeError: 'SymbolicTensor' object has no attribute 'nothing'
"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("my own bug\nand more"), "ValueError: my own bug and more"),
        (RuntimeError(OTHER_KEYS), f"RuntimeError: {' '.join(OTHER_KEYS.split())}"),
        (RuntimeError(NCCL), "RuntimeError: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 8000"),
        (DistBackendError(NCCL), "DistBackendError: Duplicate GPU detected : rank 1 and rank 0 both on CUDA"),
        (DistBackendError("Last error:"), "DistBackendError: Last error:"),
        (
            ValueError(LOADER_WORKER),
            "ValueError: Caught ValueError in DataLoader worker process 0. ValueError: boom more",
        ),
        (
            AttributeError(USER_CODE),
            "AttributeError: 'SymbolicTensor' object has no attribute 'nothing' (train.py:7)",
        ),
        (ValueError("in user code:"), "in user code"),
        (ValueError(), "ValueError: "),
        (
            RuntimeError(GRAPH_ERROR),
            "RuntimeError: Received a label value of 7 which is outside the valid range of [0, 5).",
        ),
        (RuntimeError(OUT_OF_MEMORY), "RuntimeError: OOM when allocating tensor"),
        (RuntimeError(SEVERAL), "RuntimeError: INVALID_ARGUMENT: the cause"),
        (RuntimeError("Graph execution error:"), "RuntimeError: Graph execution error:"),
        (RuntimeError("{{function_node __wrapped__IteratorGetNext}} Cannot add"), "RuntimeError: Cannot add"),
        (RuntimeError(SPAWNED), "RuntimeError: ValueError: no luck"),
        (SystemExit("no good\nat all"), "no good at all"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_what_went_wrong_is_in_the_line_that_is_told(error, line):
    assert in_a_line(error).startswith(line) and "\n" not in in_a_line(error)


def test_an_argument_that_the_script_refuses_is_named(capsys):
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning_rate", type=float)
    with pytest.raises(SystemExit) as left:
        parser.parse_args(["--learning_rate", "abc"])
    assert in_a_line(left.value) == "SystemExit: 2 (argument --learning_rate: invalid float value: 'abc')"


def test_of_a_long_text_the_beginning_and_the_end_are_told():
    said = in_a_line(RuntimeError("\n".join(["first", *["between"] * 1000, "Last error: duplicate GPU"])))
    assert said.startswith("RuntimeError: first between") and said.endswith("Last error: duplicate GPU")
    assert len(said) < 1000


def test_a_script_that_exits_because_of_an_error_is_told_with_it():
    with pytest.raises(SystemExit) as left:
        try:
            raise FileNotFoundError("no such file: labels.csv")
        except FileNotFoundError:
            sys.exit(3)
    assert in_a_line(left.value) == "SystemExit: 3 (FileNotFoundError: no such file: labels.csv)"


def test_what_click_has_printed_is_told_also_where_nobody_reads_the_ranks_output(capsys):
    click = pytest.importorskip("click")
    command = click.Command("train", params=[click.Option(["--size"], type=int)])
    for arguments, said in (
        (["--momentum", "0.9"], "SystemExit: 2 (NoSuchOption: No such option '--momentum'"),
        (["--size", "large"], "SystemExit: 2 (BadParameter: 'large' is not a valid integer"),
    ):
        with pytest.raises(SystemExit) as left:
            command.main(arguments)
        assert in_a_line(left.value).startswith(said)


def test_arguments_that_the_script_does_not_know_are_named(capsys):
    with pytest.raises(SystemExit) as left:
        argparse.ArgumentParser().parse_args(["--momentum", "0.9"])
    assert in_a_line(left.value) == "SystemExit: 2 (unrecognized arguments: --momentum 0.9)"


def test_headraces_advice_is_told_whole_and_what_is_cut_is_marked():
    advice = "what to do, " * 60
    assert in_a_line(InputError(advice)) == f"InputError: {advice}"
    assert in_a_line(InputError(advice * 2)).endswith("…")


def test_a_port_that_a_feed_server_may_have_taken_is_said_so_where_there_are_any(monkeypatch):
    error = OSError(errno.EADDRINUSE, "Address already in use")
    assert in_a_line(error) == "OSError: [Errno 98] Address already in use"
    monkeypatch.setenv("HEADRACE_FEEDS", "algo-1:6001")
    assert "only where headrace.torch.is_feed_server() is False" in in_a_line(error)


def test_a_file_that_a_worker_does_not_have_comes_with_advice():
    error = FileNotFoundError(
        "Failed to get element from worker algo-1:6001: /tmp/x.tfrecord; No such file or directory"
    )
    assert "x.tfrecord; No such file or directory (each data host reads files itself: give" in in_a_line(error)
    assert "(" not in in_a_line(FileNotFoundError("/tmp/x.tfrecord; No such file or directory"))


def test_the_length_of_what_was_distributed_is_to_be_taken_before():
    advice = "(take len() of the dataset before data.distribute, and divide it by hvd.size())"
    assert in_a_line(TypeError("The dataset length is unknown.")).endswith(advice)


def test_what_horovods_own_keras_module_and_a_saved_iterator_fail_with_comes_with_advice():
    error = AttributeError("'Variable' object has no attribute 'ref'")
    assert in_a_line(error).endswith("import headrace.tensorflow.horovod_keras as hvd)")
    assert "leave it out of tf.train.Checkpoint" in in_a_line(RuntimeError("PyFunc is stateful."))


def test_an_exception_that_cannot_say_what_it_is_has_its_name():
    class Odd(Exception):
        def __str__(self):
            raise ValueError

    assert in_a_line(Odd()) == "Odd: "
