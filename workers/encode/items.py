"""The items of a request as encode sees them: one group per distinct content. Knows no model."""

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.stage import Job
from schemas.envelope import Item, kwargs_part


@dataclass(frozen=True, slots=True)
class Group:
    """Items that are the same thing at several places."""

    items: tuple[Item, ...]
    indices: tuple[int, ...]
    """Positions among all items of the request, in prompt order."""

    @property
    def item(self) -> Item:
        return self.items[0]

    def has_kwargs(self, job: Job) -> bool:
        return job.has(kwargs_part(self.item.modality, self.item.key))


def groups_of(items: Sequence[Item]) -> list[Group]:
    """In the order of first appearance."""
    indices: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(items):
        indices.setdefault((item.modality, item.key), []).append(index)
    return [
        Group(items=tuple(items[i] for i in found), indices=tuple(found))
        for found in indices.values()
    ]
