"""Resident memory of `launch render` over thousands of pictures that it has never seen before.

    python bench/memory.py MODEL [--requests 5000] [--store-memory-bytes 134217728]

What the memory store keeps counts as memory, so the store is bounded low enough to be full, and the
figures flat, after the first few hundred requests.
"""

import argparse
from urllib.parse import urlsplit

from processes import rss_bytes, running, wait_until_up
from render import START_S, Load, Server, load_generator, tokenfleet

_CLIENTS = 8
_CASE = 0
_MIB = 1024 * 1024
_ALLOWED = 0.1


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument("--store-memory-bytes", type=int, default=128 * _MIB)
    parser.add_argument("--port", type=int, default=8190)
    return parser.parse_args()


def grow(load: Load, server: Server, arguments: argparse.Namespace) -> list[float]:
    """MiB after each stretch of requests, the first of which only warms up."""
    sizes: list[float] = []
    for done in range(0, arguments.requests + arguments.every, arguments.every):
        load.run(server, _CASE, _CLIENTS, 600.0, most=arguments.every)
        sizes.append(rss_bytes(server.pids[0]) / _MIB)
        name = "warm-up" if done == 0 else f"{done:7}"
        print(f"{name:>7} requests: {sizes[-1]:8.1f} MiB", flush=True)
    return sizes


def main() -> None:
    arguments = options()
    url = f"http://127.0.0.1:{arguments.port}"
    command = [
        tokenfleet(), "launch", "render", arguments.model, "--port", str(urlsplit(url).port),
        "--store-memory-bytes", str(arguments.store_memory_bytes), "--log-level", "warning",
    ]  # fmt: skip
    with running(command) as child, load_generator() as load:
        wait_until_up(f"{url}/ready", [child], START_S)
        first, *sizes = grow(load, Server("ours", url, [child.pid]), arguments)
    spread = max(abs(size / first - 1) for size in sizes)
    verdict = "flat" if spread <= _ALLOWED else "NOT flat"
    print(f"{verdict}: within {spread:.1%} of {first:.1f} MiB over {arguments.requests} requests")


if __name__ == "__main__":
    main()
