"""What attacks cost others: the time of a text chat beside each of them, and memory.

    python bench/hostile.py [--only WORD …] [--json FILE]

The goal for each: the worst chat within twice the usual time plus a second, and no more than
512 MiB of memory. The exit code is 1 where one misses it, or is not answered as it should be.
"""

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.hostile.attack import CLOSED, Attack
from tests.hostile.attacks import all_attacks
from tests.hostile.server import Server

_MIB = 1024 * 1024
_MAX_GROWTH = 512 * _MIB
_HEAD = (
    f"{'attack':64} {'answer':>6} {'took':>7} {'usual':>7} {'median':>7} {'worst':>7}"
    f" {'ratio':>6} {'memory':>9}"
)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="words, one of which the name has")
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args()


async def measure(server: Server, attack: Attack) -> dict[str, Any]:
    """One attack; a server that ended is started again for the next."""
    usual = median(server.usual)
    row: dict[str, Any] = {"attack": attack.name, "model": attack.model, "flags": attack.flags}
    try:
        result = await server.suffer(attack)
    except (TimeoutError, AssertionError) as error:
        row |= {"is_held": False, "problem": str(error) or "no answer"}
    else:
        times = [chat.took for chat in result.chats]
        worst = max(times, default=0.0)
        row |= {
            "status": result.answer.status, "took_s": result.took, "usual_s": usual,
            "median_s": median(times) if times else 0.0, "worst_s": worst, "ratio": worst / usual,
            "grown_mib": result.grown_bytes / _MIB,
            "is_held": attack.is_right(result.answer)
            and all(chat.status == 200 for chat in result.chats)
            and worst <= 2 * usual + 1
            and result.grown_bytes <= _MAX_GROWTH,
        }  # fmt: skip
    if not (server.is_running and await asyncio.to_thread(server.is_healthy)):
        row |= {"is_held": False, "problem": "the server ended or is not healthy"}
        await asyncio.to_thread(server.start)
    return row


def show(row: dict[str, Any]) -> None:
    verdict = "" if row["is_held"] else f"  NOT HELD {row.get('problem', '')}"
    if "status" not in row:
        print(f"{row['attack']:64} {verdict}", flush=True)
        return
    status = "closed" if row["status"] == CLOSED.status else row["status"]
    print(
        f"{row['attack']:64} {status:>6} {row['took_s']:6.2f}s {row['usual_s']:6.3f}s"
        f" {row['median_s']:6.3f}s {row['worst_s']:6.3f}s {row['ratio']:6.1f}"
        f" {row['grown_mib']:5.0f} MiB{verdict}",
        flush=True,
    )


def main() -> int:
    arguments = options()
    chosen = [
        attack
        for attack in all_attacks()
        if not arguments.only or any(word in attack.name for word in arguments.only)
    ]
    rows: list[dict[str, Any]] = []
    print(_HEAD)
    for group, attacks in itertools.groupby(chosen, key=lambda attack: attack.group):
        with tempfile.TemporaryDirectory() as folder, Server(group, Path(folder)) as server:
            for attack in attacks:
                rows.append(asyncio.run(measure(server, attack)))
                show(rows[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    missed = sum(not row["is_held"] for row in rows)
    print(f"{len(rows)} attacks, {missed} of them not held")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
