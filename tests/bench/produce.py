"""Program: produce generated records as fast as one producer can; prints when the first one was handed over,
and when the last one was acknowledged with the CPU seconds in between.

Arguments: bootstrap servers, topic, seed, how many, and which: `exact` purchases have the declared fields only,
`ordinary` ones have 30 fields; a number makes orders of so many bytes, which compress as real ones do.
"""

from __future__ import annotations

import json
import random
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Producer

from bench.formats.decode_blocks import undeclared

AT_ONCE = 10_000
DISTINCT_BLOCKS = 20
COLOURS = ("black", "blue", "brown", "green", "orange", "purple", "red", "silver", "white", "yellow")
THINGS = ("basket", "bicycle", "camera", "chair", "cotton", "helmet", "knife", "lamp", "leather", "mirror", "pencil")
WORDS = COLOURS + THINGS


def main(servers: str, topic: str, seed: int, count: int, kind: str) -> None:
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
    numbers = range(min(DISTINCT_BLOCKS, -(-count // AT_ONCE)))
    value = {"exact": purchase, "ordinary": ordinary}.get(kind) or partial(order, size_bytes=int(kind))
    blocks = [block(seed + number, value) for number in numbers]
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


def block(seed: int, value: Callable[[random.Random, int], bytes]) -> list[dict[str, Any]]:
    """Records of many customers, by whom they are keyed."""
    draw = random.Random(seed)
    messages = []
    for _ in range(AT_ONCE):
        customer = draw.randrange(1, 23_571)
        messages.append({"key": b"%05d" % customer, "value": value(draw, customer)})
    return messages


def purchase(draw: random.Random, customer: int) -> bytes:
    """A purchase like CDNOW's."""
    day = f"1997-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}"
    return (
        f'{{"customer_id":"{customer:05}","purchased_on":"{day}",'
        f'"quantity":{draw.randrange(1, 9)},"amount":{draw.randrange(100, 20_000) / 100:.2f}}}'
    ).encode()


def ordinary(draw: random.Random, customer: int) -> bytes:
    """A purchase of 30 fields and 1.2 KB: four fields are declared."""
    return json.dumps(json.loads(purchase(draw, customer)) | undeclared(draw, 22)).encode()


def order(draw: random.Random, customer: int, size_bytes: int) -> bytes:
    """An order of exactly so many bytes, 200 at least: with an id, a time, numbers, as many lines as fit, a note."""
    day = f"2026-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}"
    hour = f"{draw.randrange(24):02}:{draw.randrange(60):02}:{draw.randrange(60):02}.{draw.randrange(1000):03}Z"
    head = (
        f'{{"event_id":"{uuid.UUID(int=draw.getrandbits(128))}","customer_id":"{customer:05}","at":"{day}T{hour}",'
        f'"amount":{draw.randrange(100, 2_000_000) / 100:.2f},"lines":['
    )
    lines: list[str] = []
    used = len(head)
    while used < size_bytes - 100:
        name = f"{draw.choice(WORDS)} {draw.choice(WORDS)}"
        price = f"{draw.randrange(100, 90_000) / 100:.2f}"
        lines.append(
            f'{{"sku":"{draw.randrange(10**8):08}","quantity":{draw.randrange(1, 9)},"price":{price},"name":"{name}"}}'
        )
        used += len(lines[-1]) + 1
    text = head + ",".join(lines) + '],"note":"'
    note = ""
    while len(text) + len(note) < size_bytes:
        note += f"{draw.choice(WORDS)} "
    return f'{text}{note[: size_bytes - len(text) - 2]}"}}'.encode()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
