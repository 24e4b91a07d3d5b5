"""A server that sends its name to each client, and ends after a given number of clients."""

import os
import socket
import sys

name, port, words = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
assert os.environ["TOY"] == name
with socket.create_server(("0.0.0.0", port)) as server:
    print(f"headrace event=toy_up port={port}", flush=True)
    for _ in range(words):
        connection, _ = server.accept()
        with connection:
            connection.sendall(name.encode())
