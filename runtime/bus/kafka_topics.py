"""What the broker says about topics, remembered for a while. Never creates one."""

import asyncio
import time
from collections import OrderedDict

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidTopicError,
    NoError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest

from runtime.bus import TopicInfo
from runtime.bus.kafka_errors import translated
from runtime.bus.limits import LARGEST_BYTES
from runtime.errors import BusError
from schemas.topics import is_topic_name

_KNOWN_S = 30.0
_MISSING_S = 1.0
_ANSWER_S = 10.0
# Names may come from outside: the least recently used go.
_MAX_REMEMBERED = 1024


class KafkaTopics:
    """Owned by a bus, asks over its admin connection."""

    def __init__(self, admin: AIOKafkaAdminClient) -> None:
        self._admin = admin
        self._remembered: OrderedDict[str, tuple[float, asyncio.Task[TopicInfo | None]]]
        self._remembered = OrderedDict()

    async def info(self, topic: str) -> TopicInfo | None:
        """See `Bus.topic_info`. Calls at the same time ask once."""
        if not is_topic_name(topic):
            return None
        asked_at, asking = self._remembered.get(topic, (0.0, None))
        if asking is None or _is_stale(asked_at, asking):
            known = _result(asking) if asking else None
            asking = asyncio.create_task(self._ask(topic, known), name=f"topic {topic}")
            self._remember(topic, asking)
        # Shielded: who stops waiting must not cancel it for the others.
        return await asyncio.shield(asking)

    def forget(self, topic: str) -> None:
        """Ask again at the next call."""
        self._remembered.pop(topic, None)

    def _remember(self, topic: str, asking: "asyncio.Task[TopicInfo | None]") -> None:
        self._remembered[topic] = (time.monotonic(), asking)
        self._remembered.move_to_end(topic)
        while len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    async def _ask(self, topic: str, known: TopicInfo | None) -> TopicInfo | None:
        """What was known before has to do while the broker is away."""
        try:
            with translated():
                async with asyncio.timeout(_ANSWER_S):
                    described = await self._describe(topic)
                    return described and await self._with_limit(topic, described)
        except BusError as error:
            if known and error.retriable:
                return known
            raise
        except TimeoutError as error:
            if known:
                return known
            raise BusError(f"the broker did not describe {topic} in time") from error

    async def _describe(self, topic: str) -> TopicInfo | None:
        # By hand: `describe_topics` of the admin client creates what is missing.
        request = MetadataRequest([topic], allow_auto_topic_creation=False)
        answer = (await self._admin._send_request(request)).to_object()
        (found,) = answer["topics"]
        error = for_code(found["error_code"])
        if error in (UnknownTopicOrPartitionError, InvalidTopicError):
            return None
        if error is not NoError:
            raise error(topic)
        return TopicInfo(len(found["partitions"]), LARGEST_BYTES, found["is_internal"])

    async def _with_limit(self, topic: str, info: TopicInfo) -> TopicInfo:
        """Where the configuration may not be read, the broker's refusal has to do."""
        name = "max.message.bytes"
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: None})
        (answer,) = await self._admin.describe_configs([resource])
        ((code, _, _, _, entries),) = answer.resources
        values = {entry[0]: entry[1] for entry in entries} if for_code(code) is NoError else {}
        limit = int(values.get(name, info.max_message_bytes))
        return TopicInfo(info.num_partitions, limit, info.is_internal)


def _is_stale(asked_at: float, asking: "asyncio.Task[TopicInfo | None]") -> bool:
    if not asking.done():
        return False
    if asking.cancelled() or asking.exception() is not None:
        return True
    kept_s = _KNOWN_S if asking.result() else _MISSING_S
    return time.monotonic() - asked_at > kept_s


def _result(asked: "asyncio.Task[TopicInfo | None]") -> TopicInfo | None:
    return None if asked.cancelled() or asked.exception() else asked.result()
