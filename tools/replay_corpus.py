"""Replays recorded cases of the real vLLM and fails on any that passed before.

    python tools/replay_corpus.py --corpus DIR --models DIR [--update]

The cases that passed are listed in tests/corpus_baseline.txt; `--update` rewrites it.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "tests" / "corpus_baseline.txt"
_FAILED = re.compile(r"^FAIL (\S+)", re.MULTILINE)
_NOT_STARTED = re.compile(r"^(\S+): did not start", re.MULTILINE)


def main() -> int:
    args = _arguments()
    cases = args.corpus / "open"
    passed = passing(cases, replay(args.corpus, cases, args.models))
    total = len(_index(cases))
    if args.update:
        BASELINE.write_text("\n".join(sorted(passed)) + "\n", encoding="utf-8")
    lost = sorted(set(BASELINE.read_text(encoding="utf-8").split()) - passed)
    for case in lost:
        print(f"LOST {case} passed before")
    print(f"corpus: {len(passed)} of {total} cases, {len(lost)} of them lost")
    return 1 if lost else 0


def replay(corpus: Path, cases: Path, models: Path) -> str:
    """Run the corpus's own replay against our servers and return what it printed."""
    command = [sys.executable, str(corpus / "replay"), "--command", f"{sys.prefix}/bin/tokenfleet"]
    command += ["--models", str(models), "--cases", str(cases)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    return done.stdout


def passing(cases: Path, printed: str) -> set[str]:
    """`group/id` of the cases that neither failed nor had a server that did not start."""
    failed = set(_FAILED.findall(printed))
    dead = set(_NOT_STARTED.findall(printed))
    entries = _index(cases)
    names = {f"{e['group']}/{e['id']}" for e in entries if e["server"] not in dead}
    return names - failed if "cases" in printed else set()


def _index(cases: Path) -> list[dict[str, str]]:
    index = json.loads((cases / "index.json").read_text(encoding="utf-8"))
    entries: list[dict[str, str]] = index["cases"] if isinstance(index, dict) else index
    return entries


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--update", action="store_true", help="take what passes now as baseline")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
