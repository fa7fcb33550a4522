"""Deals partitions to the members of a group, evenly and stickily. Data in, data out."""

from collections.abc import Iterable, Mapping

from runtime.bus import TopicPartition

Assignment = dict[str, set[TopicPartition]]


def deal(
    partitions: Mapping[str, int],
    subscriptions: Mapping[str, frozenset[str]],
    previous: Mapping[str, Iterable[TopicPartition]],
) -> Assignment:
    """Give each partition of each topic (name to number) to one member that subscribes to it.

    Per topic the shares differ by one at most, and a member keeps what fits its share.
    """
    dealt: Assignment = {member: set() for member in subscriptions}
    for topic, count in sorted(partitions.items()):
        members = sorted(m for m, topics in subscriptions.items() if topic in topics)
        if members:
            _deal_topic([TopicPartition(topic, n) for n in range(count)], members, previous, dealt)
    return dealt


def _deal_topic(
    partitions: list[TopicPartition],
    members: list[str],
    previous: Mapping[str, Iterable[TopicPartition]],
    dealt: Assignment,
) -> None:
    shares = _shares(partitions, members, previous, dealt)
    free = set(partitions)
    for member in members:
        kept = sorted(free.intersection(previous.get(member, ())))[: shares[member]]
        dealt[member].update(kept)
        shares[member] -= len(kept)
        free.difference_update(kept)
    for partition in sorted(free):
        member = max(members, key=shares.__getitem__)
        dealt[member].add(partition)
        shares[member] -= 1


def _shares(
    partitions: list[TopicPartition],
    members: list[str],
    previous: Mapping[str, Iterable[TopicPartition]],
    dealt: Assignment,
) -> dict[str, int]:
    """How many each may have; the larger shares go to the less loaded, then to who had most."""
    small, larger = divmod(len(partitions), len(members))
    had = {m: len(set(partitions).intersection(previous.get(m, ()))) for m in members}
    ranked = sorted(members, key=lambda m: (len(dealt[m]), -had[m], m))
    return {member: small + (rank < larger) for rank, member in enumerate(ranked)}
