"""Compares `tokenfleet launch render` with vLLM's render server on what hypothesis thinks up.

    python tools/fuzz_render.py --ours URL --peer URL --minutes N [--seed S] [--keep-going]

Both servers are started with the same model argument (it enters the hashes), with
`--served-model-name m`, and with `--trust-request-chat-template --trust-request-mm-kwargs`, without
which what only trusted clients may send is refused and no more; with no other flag that shows in
answers. Prints a minimal reproduction of a difference and exits 1; with `--keep-going` it goes on
to the next one of another kind. Deliberate differences (fuzz/excuses.py) are counted apart.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pprint import pformat
from typing import Any

import httpx
from fuzz import bodies, excuses, other_bodies
from fuzz.bodies import Request
from fuzz.compare import Answer, Difference, difference
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

ROUND = 200  # examples after which hypothesis starts anew
PATIENCE = 120.0  # seconds for an answer

_ALONE = st.one_of(
    bodies.CHATS, bodies.completions(), other_bodies.responses(), other_bodies.messages()
)
EXAMPLES = st.one_of(_ALONE.map(lambda request: [request]), bodies.chats_with_pictures())


class Differs(Exception):
    pass


@dataclass(slots=True)
class Finding:
    requests: list[Request]
    """In order; the answers to the last one differ."""
    difference: Difference

    @property
    def kind(self) -> str:
        return f"{self.requests[-1].path} {self.difference.where}"

    def __str__(self) -> str:
        sent = [f"POST {each.path}\n{pformat(each.body, width=110)}" for each in self.requests]
        sent += [json.dumps(each.body) for each in self.requests]
        return "\n".join(text if len(text) < 3000 else f"{text[:3000]} …" for text in sent)


@dataclass(slots=True)
class Fuzz:
    """One run: what was compared and what was found."""

    ask: Callable[[Request, int], tuple[Answer, Answer]]
    until: float
    examples: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def round(self, number: int) -> Finding | None:
        """The smallest example, of the first kind of difference that shows, in one go."""
        latest: Finding | None = None

        @seed(number)
        @settings(
            max_examples=ROUND,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(EXAMPLES)
        def both_answer_alike(requests: list[Request]) -> None:
            nonlocal latest
            found = self.compare(requests)
            if found and (latest is None or latest.kind == found.kind):
                latest = found
                raise Differs

        try:
            both_answer_alike()
        except (Differs, Flaky):
            return latest
        return None

    def compare(self, requests: list[Request]) -> Finding | None:
        """None after the time is up, and for kinds that were found before."""
        if time.monotonic() > self.until:
            return None
        self.examples += 1
        for at, request in enumerate(requests, 1):
            found = self._difference(request)
            if found:
                finding = Finding(requests[:at], found)
                return finding if finding.kind not in {f.kind for f in self.findings} else None
        return None

    def _difference(self, request: Request) -> Difference | None:
        ours, peer = self.ask(request, self.examples)
        pictures = (
            " with pictures" if isinstance(peer.body, dict) and peer.body.get("features") else ""
        )
        self.answers[f"{request.path} {peer.status}{pictures}"] += 1
        found = difference(ours, peer)
        reason = excuses.reason(request, ours, peer) if found else None
        if reason is None:
            return found
        self.excused[reason] += 1
        return None


def _asker(ours: str, peer: str) -> Callable[[Request, int], tuple[Answer, Answer]]:
    clients = [httpx.Client(base_url=url, timeout=PATIENCE) for url in (ours, peer)]
    pool = ThreadPoolExecutor(len(clients))
    run = int(time.time())

    def ask(request: Request, example: int) -> tuple[Answer, Answer]:
        body = _with_own_uuids(json.dumps(request.body), run * 10**6 + example)
        one, other = pool.map(lambda client: _answer(client, request.path, body), clients)
        if one.status == other.status == 0:
            sys.exit(f"neither server answers: {one.body}")
        return one, other

    return ask


def _with_own_uuids(body: str, number: int) -> str:
    """A uuid names something else in every example: what came before must not matter."""
    body = body.replace('"uuid": "', f'"uuid": "{number}-')
    return body.replace('"uuid": 5', f'"uuid": {number}')


def _answer(client: httpx.Client, path: str, body: str) -> Answer:
    headers = {"content-type": "application/json", "x-request-id": "fuzz"}
    for _ in range(2):  # an idle connection may be closed just then
        try:
            answer = client.post(path, content=body, headers=headers)
        except httpx.TransportError as error:
            broken = Answer(0, repr(error))
        else:
            return Answer(answer.status_code, _parsed(answer))
    return broken


def _parsed(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text


def main() -> int:
    args = _arguments()
    start = time.monotonic()
    fuzz = Fuzz(_asker(args.ours, args.peer), start + args.minutes * 60)
    print(f"seed {args.seed}", flush=True)
    with suppress(KeyboardInterrupt):
        _search(fuzz, args.seed, keep_going=args.keep_going)
    _report(fuzz, (time.monotonic() - start) / 60)
    return 1 if fuzz.findings else 0


def _search(fuzz: Fuzz, first: int, *, keep_going: bool) -> None:
    """Round after round, each with a seed of its own, until the time is up."""
    for number in count(first):
        if time.monotonic() > fuzz.until or (fuzz.findings and not keep_going):
            return
        if finding := fuzz.round(number):
            fuzz.findings.append(finding)
            print(f"DIFFERENCE (seed {number}) {finding.kind}\n{finding}", flush=True)
            print(finding.difference, flush=True)


def _report(fuzz: Fuzz, minutes: float) -> None:
    for answer, number in sorted(fuzz.answers.items()):
        print(f"{number:8} answers {answer}")
    for reason, number in fuzz.excused.items():
        print(f"{number:8} excused: {reason}")
    compared = sum(fuzz.answers.values())
    print(
        f"{fuzz.examples} examples, {compared} requests in {minutes:.0f} minutes: "
        f"{len(fuzz.findings)} differences, {sum(fuzz.excused.values())} excused"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", required=True, help="address of tokenfleet launch render")
    parser.add_argument("--peer", required=True, help="address of vLLM's render server")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--keep-going", action="store_true", help="collect kinds of differences")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
