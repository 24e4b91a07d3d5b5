"""Stand in for the servers of tf.data service: send a byte to each client that connects."""

import contextlib
import socket
import sys

kind, port = sys.argv[1], int(sys.argv[2])
with socket.create_server(("0.0.0.0", port), backlog=1000) as server:
    print(f"headrace event=token_server_up kind={kind}", flush=True)
    while True:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):  # the client may have left
            connection.sendall(b"1")
