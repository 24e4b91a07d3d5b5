"""The options of `data.distribute`: how a dataset is spread over the workers. Wrong values raise an error."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import InputError
from headrace.tensorflow.service.transfer import PROTOCOL

COMPRESSIONS = {"none": None, "snappy": "SNAPPY"}
CHOICES = {
    "compression": tuple(COMPRESSIONS),
    "sharding": ("dynamic", "off"),
    "data_transfer_protocol": ("auto", PROTOCOL, "grpc"),
    "uneven": ("pad", "drop", "keep"),
}


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Options of `data.distribute`. Each default suits a cluster network."""

    compression: str = "none"
    """`none` suits a cluster network, where snappy costs more time than it saves; `snappy` suits slow networks."""
    sharding: str = "dynamic"
    """`dynamic`: the workers divide the dataset's elements (its files, if it begins with files). Each element is made
    once. `off`: each worker makes the whole dataset; the script should then repeat and shuffle the dataset."""
    shared: bool = True
    """True: all ranks have one dataset and split its stream. False: each rank gets all of its own dataset."""
    coordinated: bool = False
    """True: in each step one worker makes the batches of all ranks. Use it for data that is bucketed by length: the
    batches of a step are then of similar length, and no rank waits for another rank's longer batch."""
    data_transfer_protocol: str = "auto"
    """`headrace`: our own protocol, straight from a worker's tensors to a rank's; `grpc`: TensorFlow's, half as fast;
    `auto`: `headrace` if it is built and nothing is compressed."""
    max_outstanding_requests: int | None = None
    """Batches to request ahead. None: 2 for a finite shared stream, else 8; if `coordinated`, TensorFlow decides."""
    uneven: str = "pad"
    """How a pass ends if ranks get unequal numbers of batches. `pad`: all ranks go on as long as one has a batch, and
    the others repeat their last one; `drop`: all end when one has no batch left; `keep`: each ends by itself, which
    hangs in training, but gives exact metrics on held-out data."""
    exact: bool = True
    """True: refuse a dataset if a split would lose, repeat or change elements. False: tf.data service gets it as is."""

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise InputError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")
        if self.max_outstanding_requests is not None and self.max_outstanding_requests < 1:
            raise InputError(f"max_outstanding_requests is {self.max_outstanding_requests}; expected 1 or more")
        if self.data_transfer_protocol == PROTOCOL and self.compression != "none":
            raise InputError(f"{PROTOCOL} cannot send compressed data: leave data_transfer_protocol at 'auto'")
        if self.coordinated and self.sharding == "dynamic":
            raise InputError("coordinated reads need every worker to make the whole dataset: add sharding='off'")
        if self.coordinated and not self.shared:
            raise InputError("coordinated reads need one stream for all ranks: set shared=True")
