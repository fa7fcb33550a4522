"""One of several server processes behind a port: `python -m tokenfleet.child FD`.

Started by `tokenfleet.processes` only, with its end of the lifeline as FD.
"""

import os
import signal
import socket
import sys
from pathlib import Path

from runtime.errors import SettingsError
from runtime.lifecycle import EXIT_SETTINGS
from tokenfleet.lifeline import Lifeline
from tokenfleet.refusals import reason_of
from tokenfleet.run import run
from tokenfleet.shared import METRICS_FOLDER


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    lifeline = Lifeline(connection, Path(os.environ[METRICS_FOLDER]))
    try:
        sys.exit(run(lifeline.read_plan(), lifeline))
    except (SettingsError, ModuleNotFoundError) as error:
        reason = reason_of(error)
        if reason is None:
            raise
        lifeline.refuse(reason)
        sys.exit(EXIT_SETTINGS)


if __name__ == "__main__":
    main()
