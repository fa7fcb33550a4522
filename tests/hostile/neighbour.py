"""Asks a server for a small text over and over, and prints how long each answer took.

    python neighbour.py HOST PORT PATH BODY

A line for each: when it was asked (seconds of the monotonic clock), how long it took, the status (0
where the connection broke). A process of its own, so that making an attack does not count as
waiting; ends with its standard input.
"""

import select
import sys
import time
from http.client import HTTPConnection, HTTPException

PAUSE_S = 0.03
PATIENCE_S = 200.0


def ask(connection: HTTPConnection, path: str, body: str) -> int:
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
    except (OSError, HTTPException):
        connection.close()
        return 0
    return response.status


def main() -> None:
    host, port, path, body = sys.argv[1:]
    connection = HTTPConnection(host, int(port), timeout=PATIENCE_S)
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        asked = time.monotonic()
        status = ask(connection, path, body)
        print(asked, time.monotonic() - asked, status, flush=True)


if __name__ == "__main__":
    main()
