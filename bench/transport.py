"""Compare rates of batches from one worker to one consumer: headrace, TensorFlow's default, plain gRPC and TCP.

    python -m bench.transport [--repeats 5]

Batches are 1024 × 32 × 32 × 3 and 64 × 224 × 224 × 3 random values, made beforehand, so that only the transport is
measured. Sharding is off, because the same batch is sent again and again. "ours" is `data.distribute` with its
defaults; "ours, gRPC" is the same with the gRPC protocol. "TF default" is `service.distribute` with its defaults, which
include compression. "+ cast" adds the cast from uint8 to float32 on the consumer's processor. "Horovod compute" is
Horovod's compute_service. "gRPC bytes" and "TCP copy" send the same number of bytes without tf.data.
"""

import contextlib
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time

from bench import measure

SECONDS = 2.0
SHAPES = {"1024x32x32x3": (1024, 32, 32, 3), "64x224x224x3": (64, 224, 224, 3)}
BYTES = {"float32": 4, "uint8": 1}
SERVED = [
    ("ours", "float32"),
    ("ours", "uint8"),
    ("ours + cast", "uint8"),
    ("ours, gRPC", "float32"),
    ("ours, gRPC", "uint8"),
    ("TF default", "float32"),
    ("TF default", "uint8"),
    ("Horovod compute", "float32"),
    ("Horovod compute", "uint8"),
]


def main(argv=None):
    repeats = measure.arguments(__doc__, argv).repeats
    consumer_cpu, worker_cpu = measure.two_processors()
    with measure.pinned(consumer_cpu):
        rates = {}
        with measure.service([[worker_cpu]]) as service, compute_service(worker_cpu) as compute:
            os.environ |= {"HEADRACE_TF_DATA_MODE": "service", "HEADRACE_DISPATCHER": service.address}
            for repeat in range(repeats):
                for shape in SHAPES:
                    for way, dtype in SERVED:
                        name = f"{way}-{shape}-{dtype}-{repeat}"
                        rate = batches_per_s(way, shape, dtype, name, service.address, compute)
                        rates.setdefault((way, shape, dtype), []).append(rate)
                    for way, source in BARE.items():
                        for dtype in BYTES:
                            rate = bare(source, size(shape, dtype), worker_cpu)
                            rates.setdefault((way, shape, dtype), []).append(rate)
    rows = []
    for (way, shape, dtype), values in sorted(rates.items(), key=lambda item: item[0][1:]):
        rate = measure.median(values)
        rows.append(
            {
                "way": way,
                "batch": shape,
                "dtype": dtype,
                "MB/s": rate * size(shape, dtype) / 1e6,
                "images/s": rate * SHAPES[shape][0],
            }
        )

    def ratio(one, other):
        return measure.median([a / b for a, b in zip(rates[one], rates[other], strict=True)])

    small, large = SHAPES
    default = ("TF default", small, "float32")
    figures = {
        "transport_float32_vs_tf_default": ratio(("ours", small, "float32"), default),
        "transport_uint8_images_vs_tf_default": ratio(("ours + cast", small, "uint8"), default),
        "transport_vs_tcp": ratio(("ours", large, "uint8"), ("TCP copy", large, "uint8")),
        "transport_vs_grpc": ratio(("ours", large, "uint8"), ("gRPC bytes", large, "uint8")),
    }
    measure.leave("transport", figures, rows, repeats=repeats)


def size(shape, dtype):
    batch, height, width, channels = SHAPES[shape]
    return batch * height * width * channels * BYTES[dtype]


@contextlib.contextmanager
def compute_service(cpu):
    """Run Horovod's compute_service with one worker on this processor; yield its configuration."""
    from horovod.tensorflow.data.compute_service import TfDataServiceConfig

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        path = os.path.join(folder, "compute.json")
        mpirun = os.path.join(sysconfig.get_path("scripts"), "mpirun")
        command = [mpirun, "--allow-run-as-root", "--bind-to", "none", "-np", "1", sys.executable, "-m"]
        with measure.pinned(cpu):
            command += ["horovod.tensorflow.data.compute_worker", path]
            running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while not os.path.exists(path):
                if time.monotonic() > deadline or running.poll() is not None:
                    raise SystemExit("bench: error: Horovod's compute_service did not start within 60 s")
                time.sleep(0.1)
            yield TfDataServiceConfig.read(path, wait_for_file_creation=True)
        finally:
            running.terminate()
            running.wait()


def batches_per_s(way, shape, dtype, name, address, compute):
    """Return batches per second through the service, over `SECONDS` after the first few batches."""
    import tensorflow as tf
    from headrace.tensorflow import data

    values = tf.random.stateless_uniform(SHAPES[shape], [1, 2], 0, 256, tf.int32)
    dataset = tf.data.Dataset.from_tensors(tf.cast(values, dtype)).repeat()
    if way.startswith("ours"):
        protocol = "grpc" if way == "ours, gRPC" else "headrace"
        dataset = data.distribute(dataset, job_name=name, sharding="off", data_transfer_protocol=protocol)
    elif way == "Horovod compute":
        dataset = dataset.send_to_data_service(compute, rank=0, size=1, processing_mode="parallel_epochs")
    else:
        policy = tf.data.experimental.service.ShardingPolicy.OFF
        dataset = dataset.apply(tf.data.experimental.service.distribute(policy, f"grpc://{address}", job_name=name))
    if way == "ours + cast":
        dataset = dataset.map(lambda images: tf.cast(images, tf.float32))
    batches = iter(dataset.prefetch(2))
    return measure.per_second(lambda: next(batches), SECONDS, warm_up=10)


def bare(source, message_bytes, cpu):
    """Run the sender `source` (Python code) on the processor `cpu`. Return how many messages per second arrive."""
    with measure.pinned(cpu):
        sender = subprocess.Popen([sys.executable, "-c", source, str(message_bytes)], stdout=subprocess.PIPE, text=True)
    try:
        port = int(sender.stdout.readline())
        return (_receive_grpc if source is GRPC else _receive_tcp)(port, message_bytes)
    finally:
        sender.kill()
        sender.communicate()


TCP = """
import os, socket, sys
message = os.urandom(int(sys.argv[1]))
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
while True:
    connection.sendall(message)
"""

GRPC = """
import os, sys, threading
from concurrent import futures
import grpc
message = os.urandom(int(sys.argv[1]))
def stream(request, context):
    while True:
        yield message
unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
server = grpc.server(futures.ThreadPoolExecutor(1), options=unlimited)
handler = grpc.method_handlers_generic_handler("bench", {"Stream": grpc.unary_stream_rpc_method_handler(stream)})
server.add_generic_rpc_handlers([handler])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
threading.Event().wait()
"""

BARE = {"gRPC bytes": GRPC, "TCP copy": TCP}


def _receive_tcp(port, message_bytes):
    buffer = memoryview(bytearray(message_bytes))
    with socket.create_connection(("127.0.0.1", port)) as connection:

        def receive():
            got = 0
            while got < message_bytes:
                got += connection.recv_into(buffer[got:])

        return measure.per_second(receive, SECONDS, warm_up=5)


def _receive_grpc(port, message_bytes):
    import grpc

    unlimited = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=unlimited) as channel:
        messages = channel.unary_stream("/bench/Stream")(b"")
        rate = measure.per_second(lambda: next(messages), SECONDS, warm_up=5)
        messages.cancel()
        return rate


if __name__ == "__main__":
    main()
