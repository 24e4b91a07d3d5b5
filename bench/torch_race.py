"""Compare ways to send batches of tensors from one process to another, for bench/torch_feed.py.

`torch_race.py serve|take WAY FORM PORT PROCESSOR` runs the server or the consumer of one way.

Each server sends the same batch again and again. `open_WAY` returns a function that receives the next batch as tensors.
Each server and consumer runs in its own process: the feed changes its process's memory allocator, and in a shared
process this would speed up the other ways too.
"""

import contextlib
import json
import os
import pickle
import socket
import struct
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch

warnings.filterwarnings("ignore", "The given buffer is not writable")  # gRPC's and Flight's messages
SECRET = "race"
SECONDS = 3.0
WARM_UP = 5
GRPC_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
METHOD = "/race.Batches/Get"


def batch(form):
    """Return images and labels; `form` is `uint8_224`, `float32_224` or `uint8_32`."""
    dtype, size = form.split("_")
    torch.manual_seed(0)  # both sides make the same batch
    images = torch.randint(0, 256, (32, 3, int(size), int(size)), dtype=torch.uint8)
    return (images if dtype == "uint8" else images.float() / 255), torch.arange(32)


class Same(torch.utils.data.Dataset):
    """A dataset that returns the same batch each time, at no cost."""

    def __init__(self, form):
        self.batch = batch(form)

    def __len__(self):
        return 1 << 24

    def __getitem__(self, index):
        return self.batch


def first(samples):
    return samples


# TCP: the bytes only, into the same memory each time.


def serve_tcp(form, port):
    images, labels = batch(form)
    parts = [memoryview(each.reshape(-1).view(torch.uint8).numpy()) for each in (images, labels)]
    with socket.create_server(("127.0.0.1", port)) as listener:
        while not (connection := listener.accept()[0]).recv(1):
            connection.close()  # a probe that only checked whether the port is open
        with contextlib.suppress(ConnectionError):  # the consumer has finished
            while connection.recv(1):
                rest = list(parts)
                while rest:
                    sent = connection.sendmsg(rest)
                    while rest and sent >= rest[0].nbytes:
                        sent -= rest.pop(0).nbytes
                    rest[:1] = [rest[0][sent:]] if rest else []


def open_tcp(form, port):
    connection = socket.create_connection(("127.0.0.1", port))
    into = batch(form)
    views = [memoryview(each.reshape(-1).view(torch.uint8).numpy()) for each in into]
    connection.send(b"xxx")  # requests ahead, so that the server never waits

    def take():
        connection.send(b"x")
        for view in views:
            got = 0
            while got < view.nbytes:
                got += connection.recv_into(view[got:], 0, socket.MSG_WAITALL)
        return into

    return take


# gRPC: a stream of messages, each with a batch's bytes, or with a pickled batch as in the public sample code (ADR 21).


def _serve_grpc(form, port, message):
    import grpc

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            def stream(request, context):
                while True:
                    yield message()

            return grpc.unary_stream_rpc_method_handler(stream)

    server = grpc.server(ThreadPoolExecutor(4), options=GRPC_OPTIONS)
    server.add_generic_rpc_handlers((Handler(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


def _open_grpc(port, read):
    import grpc

    channel = grpc.insecure_channel(f"127.0.0.1:{port}", GRPC_OPTIONS)
    grpc.channel_ready_future(channel).result(30)
    messages = channel.unary_stream(METHOD)(b"")
    return lambda: read(next(messages))


def serve_grpc(form, port):
    images, labels = batch(form)
    size = struct.pack("<Q", images.nbytes)
    _serve_grpc(form, port, lambda: b"".join((size, images.numpy().tobytes(), labels.numpy().tobytes())))


def open_grpc(form, port):
    images, labels = batch(form)

    def read(message):
        data = memoryview(message)
        end = 8 + struct.unpack_from("<Q", data)[0]
        return (
            torch.frombuffer(data[8:end], dtype=images.dtype).view(images.shape),
            torch.frombuffer(data[end:], dtype=labels.dtype),
        )

    return _open_grpc(port, read)


def serve_pickle(form, port):
    made = batch(form)
    _serve_grpc(form, port, lambda: pickle.dumps(made))


def open_pickle(form, port):
    return _open_grpc(port, pickle.loads)


# Arrow Flight: a stream of record batches, with one column for the images' bytes and one for the labels' bytes.


def serve_flight(form, port):
    import pyarrow as pa
    from pyarrow import flight

    columns = [pa.py_buffer(each.reshape(-1).view(torch.uint8).numpy()) for each in batch(form)]
    arrays = [
        pa.BinaryArray.from_buffers(pa.large_binary(), 1, [None, _offsets(pa, each.size), each]) for each in columns
    ]
    record = pa.RecordBatch.from_arrays(arrays, ["images", "labels"])

    class Server(flight.FlightServerBase):
        def do_get(self, context, ticket):
            return flight.GeneratorStream(record.schema, (record for _ in iter(int, 1)))

    Server(f"grpc://127.0.0.1:{port}").serve()


def _offsets(pa, size):
    return pa.py_buffer(struct.pack("<qq", 0, size))


def open_flight(form, port):
    from pyarrow import flight

    images, labels = batch(form)
    reader = flight.connect(f"grpc://127.0.0.1:{port}").do_get(flight.Ticket(b""))

    def take():
        record = reader.read_chunk().data
        found = [memoryview(record.column(number)[0].as_buffer()) for number in (0, 1)]
        return (
            torch.frombuffer(found[0], dtype=images.dtype).view(images.shape),
            torch.frombuffer(found[1], dtype=labels.dtype),
        )

    return take


# headrace: a feed server and a loader, as in a job.


def serve_feed(form, port):
    import headrace.torch
    from headrace.torch.feed.server import FeedServer

    loader = headrace.torch.DataLoader(Same(form), None)
    FeedServer(f"127.0.0.1:{port}", port, SECRET, 1, 600.0).serve({loader.key: loader})


def open_feed(form, port):
    os.environ |= {
        "HEADRACE_JOB_SECRET": SECRET,
        "HEADRACE_TF_DATA_MODE": "service",
        "HEADRACE_FEEDS": f"127.0.0.1:{port}",
    }
    import headrace.torch

    batches = iter(headrace.torch.DataLoader(Same(form), None))
    return lambda: next(batches)


def take(way, form, port):
    """Print two rates as JSON: images per second of elapsed time, and images per second of this process's CPU time."""
    take_next = globals()[f"open_{way}"](form, port)
    for _ in range(WARM_UP):
        take_next()
    count, began, busy = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < SECONDS:
        take_next()
        count += 32
    print(json.dumps([count / (time.perf_counter() - began), count / (time.process_time() - busy)]), flush=True)


if __name__ == "__main__":
    side, given_way, given_form, given_port, processor = sys.argv[1:]
    os.sched_setaffinity(0, {int(processor)})
    if side == "take":
        take(given_way, given_form, int(given_port))
        os._exit(0)  # an endless stream is still open
    globals()[f"serve_{given_way}"](given_form, int(given_port))
