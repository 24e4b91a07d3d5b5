"""A user-space switch that delays and drops one host's frames; it runs in the simulated network's namespace.

    python slow_link.py HOST DELAY_S LOSS

The host's cable is moved from the bridge to a pair of TAP devices. Every frame between these devices is dropped
with probability LOSS, or else waits DELAY_S seconds. (The kernel's own netem may be missing.)
"""

import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import sys
import time

from pyroute2 import IPRoute

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
MTU_BYTES = 9001
FRAME_BYTES = 65536


def open_tap(name):
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return descriptor


def main():
    host, delay_s, loss = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    near, far = open_tap("near"), open_tap("far")
    with IPRoute() as network:

        def index(name):
            return network.link_lookup(ifname=name)[0]

        network.link("add", ifname="slow", kind="bridge")
        for name, bridge in (("near", "headrace"), ("far", "slow"), (f"to-{host}", "slow")):
            network.link("set", index=index(name), mtu=MTU_BYTES, state="up")
            network.link("set", index=index(name), master=index(bridge))
        network.link("set", index=index("slow"), state="up")
    print("ready", flush=True)
    across = {near: far, far: near}
    waiting, order = [], itertools.count()
    while True:
        timeout_s = max(waiting[0][0] - time.monotonic(), 0) if waiting else None
        readable, _, _ = select.select([near, far], [], [], timeout_s)
        now = time.monotonic()
        for descriptor in readable:
            frame = os.read(descriptor, FRAME_BYTES)
            if random.random() >= loss:
                heapq.heappush(waiting, (now + delay_s, next(order), across[descriptor], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(waiting)
            os.write(target, frame)


if __name__ == "__main__":
    main()
