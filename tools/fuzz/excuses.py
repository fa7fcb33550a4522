"""The deliberate differences from vLLM, each with its reason: what is excused, and nothing more."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from fuzz.bodies import Request
from fuzz.compare import Answer
from fuzz.values import LITERALS


@dataclass(frozen=True, slots=True)
class Excuse:
    reason: str
    holds: Callable[[Request, Answer, Answer], bool]
    """For the request, our answer and the peer's."""


def reason(request: Request, ours: Answer, peer: Answer) -> str | None:
    return next((e.reason for e in EXCUSES if e.holds(request, ours, peer)), None)


def _literal(request: Request, ours: Answer, peer: Answer) -> bool:
    body = json.dumps(request.body, ensure_ascii=False)
    is_worse = ours.status != 200 and peer.status == 200
    # vLLM takes the literal for the picture that the template leaves out.
    stands_in = ours.status == 400 and "does not place every" in str(ours.body)
    return any(literal in body for literal in LITERALS) and (stands_in or not is_worse)


def _caller_at_fault(_request: Request, ours: Answer, peer: Answer) -> bool:
    return peer.status >= 500 and 400 <= ours.status < 500


def _template_first(request: Request, ours: Answer, peer: Answer) -> bool:
    of_template = {"continue_final_message", "chat_template", "chat_template_kwargs"}
    may_refuse = of_template & set(request.body)
    return peer.status == 422 and ours.status == 400 and bool(may_refuse)


def _empty_history(request: Request, ours: Answer, peer: Answer) -> bool:
    crashed = peer.status == 500 and "list index out of range" in str(peer.body)
    return crashed and ours.status == 200 and request.path == "/v1/responses/render"


def _passes_though_broken(ours: Answer, peer: Answer) -> bool:
    is_broken = peer.status == 400 and "Failed to load image" in str(peer.body)
    return is_broken and ours.status == 200


def _known_by_its_uuid(request: Request, ours: Answer, peer: Answer) -> bool:
    return _passes_though_broken(ours, peer) and '"uuid"' in json.dumps(request.body)


def _planned_only(request: Request, ours: Answer, peer: Answer) -> bool:
    fields = ("mm_payload", "none"), ("return_mm_kwargs", False)
    is_bare = any(request.body.get(name) == value for name, value in fields)
    return _passes_though_broken(ours, peer) and is_bare


def _uuid_of_two_kinds(request: Request, ours: Answer, peer: Answer) -> bool:
    body = json.dumps(request.body)
    has_both = all(f'"{kind}_url"' in body for kind in ("image", "video"))
    is_shared = body.count('"uuid"') > 1 and has_both
    return peer.status == 500 and ours.status == 200 and is_shared


def _of_another_kind(request: Request, ours: Answer, peer: Answer) -> bool:
    """Such options are not in the hash, so whoever knows the medium never looks at them."""
    options, body = request.body.get("mm_processor_kwargs"), json.dumps(request.body)
    scopes = options if isinstance(options, dict) else {}
    is_foreign = any(
        f"{kind}s_kwargs" in scopes and f'"{kind}_url"' not in body for kind in ("image", "video")
    )
    is_refused = ours.status == 400 and "mm_processor_kwargs" in str(ours.body)
    return is_refused and peer.status == 200 and is_foreign


def _broken_and_turned(_request: Request, ours: Answer, peer: Answer) -> bool:
    is_odd = ours.status == 400 and "its pixels do not fit its header" in str(ours.body)
    return is_odd and peer.status == 200


EXCUSES = (
    Excuse("a placeholder literal typed by a user is plain text", _literal),
    Excuse("a caller's fault answers 4xx where vLLM answers 5xx", _caller_at_fault),
    Excuse("nothing is fetched for messages that the template refuses", _template_first),
    Excuse("what a uuid names already is not decoded again", _known_by_its_uuid),
    Excuse("a uuid names a picture and a video apart; vLLM fails inside", _uuid_of_two_kinds),
    Excuse("bad options are refused though they are for another kind", _of_another_kind),
    Excuse("a sound header is enough where no tensors are asked for", _planned_only),
    Excuse(
        "a broken picture that its header turns is refused; vLLM shows what it has, unturned",
        _broken_and_turned,
    ),
    Excuse("an assistant message without parts is empty; vLLM fails inside", _empty_history),
)
