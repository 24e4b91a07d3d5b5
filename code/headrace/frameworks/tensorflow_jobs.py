"""TensorFlow's `Framework` object: all that the other packages know of TensorFlow and Keras."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from headrace.frameworks import horovod
from headrace.frameworks.framework import Framework, RankFacts, Said

_ADVICE = {
    "The dataset length is unknown.": "take len() of the dataset before data.distribute, and divide it by hvd.size()",
    "has no attribute 'ref'": "Horovod's own Keras module does not know Keras 3: "
    "import headrace.tensorflow.horovod_keras as hvd",
    "PyFunc is stateful": "the iterator of a distributed dataset cannot be saved: leave it out of "
    "tf.train.Checkpoint. To resume in mid-epoch, use callbacks.Checkpoint and data.Shards",
}
"""Advice on errors. Each key is a part of the error's text."""
_PLACE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ABOUT_THE_NODE = re.compile(
    r"Detected at node|<stack traces|Hint:|\d+ (successful operations|derived errors|root error)"
)


def _rank_environ(facts: RankFacts) -> dict[str, str]:
    return {"KERAS_BACKEND": "tensorflow"} | horovod.rank_environ(facts)


def _what_is_said(lines: Sequence[str]) -> Said | None:
    """Find the message in a graph's execution error, or in an error that AutoGraph has wrapped."""
    if lines and lines[0].startswith("Graph execution error"):
        # If the text lists several errors, take the first. Else take the last line that describes no graph node.
        several = [line.split("(0) ", 1)[1] for line in lines if line.strip().startswith("(0) ")]
        told = [line for line in lines[1:] if not line[0].isspace() and not _ABOUT_THE_NODE.match(line)]
        return Said((several or told[::-1] or lines)[:1])
    if lines and lines[0].startswith("in user code:"):  # from AutoGraph: a traceback, and then the error
        told = [line.strip() for line in lines[1:] if line.startswith("    ") and not line[4:5].isspace()]
        places = [each for each in map(_PLACE.match, told) if each and "-packages" not in each["file"]]
        said = next((line for line in reversed(told) if not line.startswith("File ")), "in user code")
        where = f" ({os.path.basename(places[-1]['file'])}:{places[-1]['line']})" if places else ""
        return Said([said + where], names_its_type=True)
    return None


def _advice(_: BaseException, said: str) -> str:
    return next((advice for text, advice in _ADVICE.items() if text in said), "")


TENSORFLOW = Framework(
    name="tensorflow",
    title="TensorFlow",
    training_script="train_dnn.py",
    image_version="2.21.0",  # the version in code/constraints.txt, for which AWS has an image
    modules=("tensorflow", "keras", "horovod"),
    how_to_install="in a checkout, `make setup` and use .venv/bin/python; "
    "else `pip install headrace[local]` (or [submit]) and `headrace setup`",
    data_service="tf_data",
    without_sharing="distribute(..., shared=False)",
    measured_by="callbacks.Measure",
    rank_environ=_rank_environ,
    what_is_said=_what_is_said,
    lost_peer=horovod.lost_peer,
    has_lint=True,
    installer=horovod.INSTALLER,
    recipe=horovod.RECIPE,
    process_environ=lambda environ: {"TF_CPP_MIN_LOG_LEVEL": environ.get("TF_CPP_MIN_LOG_LEVEL", "2")},
    trains_in_threads=True,
    # Every process prints these lines at its start, before its log level takes effect.
    noise=r"All log messages before absl::InitializeLog|oneDNN custom operations are on",
    stall_words=horovod.STALL_WORDS,
    advice=_advice,
    after_script=horovod.after_script,
    leave=horovod.leave,
)
