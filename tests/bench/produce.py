"""Program: produce generated purchases as fast as one producer can; prints when the first one was handed over,
and when the last one was acknowledged with the CPU seconds in between.

Arguments: bootstrap servers, topic, seed, how many.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from confluent_kafka import KafkaError, Producer

AT_ONCE = 10_000
DISTINCT_BLOCKS = 20


def main(servers: str, topic: str, seed: int, count: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "partitioner": "murmur2_random",
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "batch.size": 512 * 1024,
            "queue.buffering.max.messages": 400_000,
        }
    )
    blocks = [block(seed + number) for number in range(min(DISTINCT_BLOCKS, -(-count // AT_ONCE)))]
    prepared = time.process_time()
    print(time.time(), flush=True)
    for number, done in enumerate(range(0, count, AT_ONCE)):
        send(producer, topic, blocks[number % len(blocks)][: count - done])
    assert producer.flush(300) == 0
    print(time.time(), time.process_time() - prepared, flush=True)


def send(producer: Any, topic: str, messages: list[dict[str, Any]]) -> None:
    while messages:
        producer.produce_batch(topic, messages)
        refused = [message for message in messages if "_error" in message]
        for message in refused:
            error = message.pop("_error")
            assert error.code() == KafkaError._QUEUE_FULL, error
        producer.poll(0.05 if refused else 0)
        messages = refused


def block(seed: int) -> list[dict[str, Any]]:
    """Purchases like CDNOW's."""
    draw = random.Random(seed)
    messages = []
    for _ in range(AT_ONCE):
        customer = draw.randrange(1, 23_571)
        day = f"1997-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}"
        value = (
            f'{{"customer_id":"{customer:05}","purchased_on":"{day}",'
            f'"quantity":{draw.randrange(1, 9)},"amount":{draw.randrange(100, 20_000) / 100:.2f}}}'
        )
        messages.append({"key": b"%05d" % customer, "value": value.encode()})
    return messages


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
