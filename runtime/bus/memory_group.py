"""Consumer groups of the memory bus: membership, eager rebalances, committed offsets.

A rebalance revokes everything from everyone and assigns everything anew, as aiokafka's assignors
do. Knows records only by their offsets.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from runtime.bus import RebalanceListener, TopicPartition
from runtime.bus.assignment import deal
from runtime.errors import OwnershipLost

logger = logging.getLogger(__name__)


class Member(Protocol):
    """A consumer as its group sees it."""

    id: str
    topics: frozenset[str]
    listener: RebalanceListener | None

    def hold(self) -> None:
        """Hand out no records until the next `take`."""

    def take(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        """Own these from now on, each from its committed offset (None: the earliest)."""

    def release(self) -> None:
        """Hand out records again."""


class Group:
    """Lives as long as the bus; members come and go. Only the rebalance task changes owners."""

    def __init__(self, name: str, count: Callable[[str], int]) -> None:
        self.name = name
        self.committed: dict[TopicPartition, int] = {}
        self._count = count
        self._members: dict[str, Member] = {}
        self._owned: dict[str, set[TopicPartition]] = {}
        self._is_stale = False
        self._settled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def reads(self, topic: str) -> bool:
        return any(topic in member.topics for member in self._members.values())

    async def join(self, member: Member) -> None:
        """Return once the member has its partitions."""
        self._members[member.id] = member
        self._rebalance()
        try:
            await self._settled.wait()
        except asyncio.CancelledError:
            self.leave(member)
            raise

    def leave(self, member: Member) -> None:
        """Give its partitions to the others, who learn of it in the background."""
        if self._members.pop(member.id, None) is not None:
            self._owned.pop(member.id, None)
            self._rebalance()

    def commit(self, member: Member, offsets: Mapping[TopicPartition, int]) -> None:
        lost = offsets.keys() - self._owned.get(member.id, set())
        if lost:
            raise OwnershipLost(f"{sorted(lost)} moved to another member of {self.name}")
        self.committed.update(offsets)

    def close(self) -> None:
        if self._task:
            self._task.cancel()

    def _rebalance(self) -> None:
        self._is_stale = True
        self._settled.clear()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._settle(), name=f"rebalance {self.name}")

    async def _settle(self) -> None:
        """Rebalance until nobody came or went meanwhile."""
        try:
            while self._is_stale:
                self._is_stale = False
                await self._revoke_all()
                self._deal()
                await self._announce_all()
        finally:
            self._settled.set()

    async def _revoke_all(self) -> None:
        members = list(self._members.values())
        for member in members:
            member.hold()
        await _all(
            _told(m.listener.revoked(sorted(owned)))
            for m in members
            if m.listener and (owned := self._owned.get(m.id))
        )

    def _deal(self) -> None:
        topics = {topic for member in self._members.values() for topic in member.topics}
        self._owned = deal(
            {topic: self._count(topic) for topic in topics},
            {member.id: member.topics for member in self._members.values()},
            self._owned,
        )
        for member in self._members.values():
            member.take({p: self.committed.get(p) for p in self._owned[member.id]})

    async def _announce_all(self) -> None:
        members = [m for m in self._members.values() if m.id in self._owned]
        await _all(
            _told(m.listener.assigned(sorted(self._owned[m.id]))) for m in members if m.listener
        )
        for member in members:
            member.release()


async def _all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*calls)


async def _told(call: Coroutine[Any, Any, None]) -> None:
    """A listener that fails must not stop the group: the others wait for their partitions."""
    try:
        await call
    except Exception:
        logger.exception("rebalance_listener_failed")
