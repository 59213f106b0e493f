"""What the link gives to plain sockets, both ways at once: ``tcp.py serve PORT``, and once it is ready ``tcp.py ADDRESS PORT MEGABYTES`` prints bytes/s."""

from __future__ import annotations

import socket
import sys
import threading
import time


def both_ways(peer: socket.socket, count: int) -> None:
    """Sends and receives ``count`` bytes at the same time."""
    sender = threading.Thread(target=peer.sendall, args=(bytes(count),))
    sender.start()
    left = count
    while left:
        left -= len(peer.recv(min(left, 1 << 20)))
    sender.join()


def serve(port: int) -> None:
    with socket.create_server(("0.0.0.0", port)) as server:
        print("ready", flush=True)
        peer, _ = server.accept()
        with peer:
            both_ways(peer, int.from_bytes(peer.recv(8), "big"))


def measure(address: str, port: int, count: int) -> float:
    with socket.create_connection((address, port)) as peer:
        peer.sendall(count.to_bytes(8, "big"))
        started = time.perf_counter()
        both_ways(peer, count)
        return count / (time.perf_counter() - started)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        print(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) * 1_000_000))
