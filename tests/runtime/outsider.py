"""A program outside of the fleet that writes to its topics whatever Kafka takes."""

import asyncio

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NoError, NotLeaderForPartitionError, for_code
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.structs import TopicPartition


async def put_raw(servers: str, topic: str, batch: bytes, partition: int = 0) -> int:
    """Write a batch as it is, past every client's checks; the offset it was given."""
    client = AIOKafkaClient(bootstrap_servers=servers)
    await client.bootstrap()
    try:
        await client._wait_on_metadata(topic)
        node = client.cluster.leader_for_partition(TopicPartition(topic, partition))
        request = ProduceRequest(
            transactional_id=None,
            required_acks=-1,
            timeout=10_000,
            topics=[(topic, [(partition, batch)])],
        )
        while True:
            answer = await client.send(node, request)
            ((_, ((_, code, offset, *_),)),) = answer.topics
            error = for_code(code)
            if error is NoError:
                return offset
            if error is not NotLeaderForPartitionError:  # a new topic is led a moment later
                raise error()
            await asyncio.sleep(0.05)
    finally:
        await client.close()
