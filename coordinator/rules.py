"""What may travel where: the payload rules, per item, as a table. Pure; no I/O, no model code.

K is an item's `kwargs_data`, M its `mm_metadata`, E the `ec_transfer_params` that cover it
(design: "The payload rules"; 03-generate §4; the seed's "Multimodal Render Features").
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from schemas.envelope import Item
from schemas.errors import ApiError, FailureCode


class Leg(StrEnum):
    """Where an item is about to go."""

    ENCODE = "encode"
    PREFILL_ENCODED = "prefill, after encode"
    PREFILL_DIRECT = "prefill, direct request"


class Action(StrEnum):
    SEND = "send"
    SKIP = "skip"
    """Nothing to do at that stage: the embedding is there already."""
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one item."""

    kwargs: bool
    metadata: bool
    ec: bool
    encoded: bool
    """The embedding is in the encoder cache already."""
    needs_metadata: bool
    """The model exposes metadata for the item's modality."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A row: applies where every given condition equals the fact (None: any)."""

    leg: Leg
    action: Action
    kwargs: bool | None = None
    metadata: bool | None = None
    ec: bool | None = None
    encoded: bool | None = None
    needs_metadata: bool | None = None
    sends_kwargs: bool = False
    sends_metadata: bool = False
    reason: str = ""

    def applies(self, leg: Leg, facts: Facts) -> bool:
        conditions = (
            (self.kwargs, facts.kwargs),
            (self.metadata, facts.metadata),
            (self.ec, facts.ec),
            (self.encoded, facts.encoded),
            (self.needs_metadata, facts.needs_metadata),
        )
        return self.leg is leg and all(want is None or want == have for want, have in conditions)


NO_KWARGS = "kwargs_data is required to encode the item and its embedding is not cached"
NO_EC = "metadata-only multimodal items require ec_transfer_params"
NO_METADATA = "mm_metadata is required when kwargs_data is omitted"
NOTHING = "kwargs_data is omitted and there are no ec_transfer_params"

# The first row that applies decides. Every leg ends in a row without conditions.
TABLE: tuple[Rule, ...] = (
    Rule(Leg.ENCODE, Action.SKIP, encoded=True),
    Rule(Leg.ENCODE, Action.SEND, kwargs=True, sends_kwargs=True),
    # A client that brings no tensors but E says that somebody encoded the item.
    Rule(Leg.ENCODE, Action.SKIP, ec=True),
    Rule(Leg.ENCODE, Action.REJECT, reason=NO_KWARGS),
    Rule(Leg.PREFILL_ENCODED, Action.REJECT, ec=False, encoded=False, reason=NO_EC),
    Rule(Leg.PREFILL_ENCODED, Action.SEND, needs_metadata=False),
    Rule(Leg.PREFILL_ENCODED, Action.SEND, metadata=True, sends_metadata=True),
    Rule(Leg.PREFILL_ENCODED, Action.REJECT, reason=NO_METADATA),
    Rule(Leg.PREFILL_DIRECT, Action.SEND, kwargs=True, sends_kwargs=True),
    Rule(Leg.PREFILL_DIRECT, Action.REJECT, ec=False, metadata=True, reason=NO_EC),
    Rule(Leg.PREFILL_DIRECT, Action.REJECT, ec=False, reason=NOTHING),
    Rule(Leg.PREFILL_DIRECT, Action.SEND, metadata=True, sends_metadata=True),
    Rule(Leg.PREFILL_DIRECT, Action.SEND, needs_metadata=False),
    Rule(Leg.PREFILL_DIRECT, Action.REJECT, reason=NO_METADATA),
)


def decide(leg: Leg, facts: Facts) -> Rule:
    """The row of the table that decides about one item."""
    return next(rule for rule in TABLE if rule.applies(leg, facts))


def apply(leg: Leg, items: Iterable[tuple[Item, Facts]]) -> list[tuple[Item, Rule]]:
    """Decide every item by itself. Raise ApiError naming the first one that is rejected."""
    decided = [(item, decide(leg, facts)) for item, facts in items]
    for item, rule in decided:
        if rule.action is Action.REJECT:
            raise _rejection(item, rule)
    return decided


def _rejection(item: Item, rule: Rule) -> ApiError:
    where = f"{item.modality} item at position {item.offset} of prompt {item.prompt}"
    if rule.leg is Leg.PREFILL_DIRECT:
        # A schema error of vLLM (03-generate §2 row 9), so its type and param.
        return ApiError(f"{where}: {rule.reason}", type="Bad Request", param="body")
    return ApiError(f"{where}: {rule.reason}", code=FailureCode.EMBEDDING_MISSING)
