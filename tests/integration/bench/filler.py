"""Stands in for Spark where a test has no time for it: fills Redis from the source, each batch in two halves."""

from __future__ import annotations

import sys
import time
from collections import Counter

import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench.truth import ACCOUNTS, COUNTERS, SOURCE
from statehouse.local.ports import LOOPBACK

_HALF_S = 0.2


def main() -> None:
    """Run until it is ended, or Redis fails."""
    bootstrap, port, partitions = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "filler", "enable.auto.commit": False})
    consumer.assign([TopicPartition(SOURCE, each, OFFSET_BEGINNING) for each in range(partitions)])
    client = redis.Redis(host=LOOPBACK, port=port, socket_timeout=30.0)
    balances, counters = Counter[str](), Counter[str]()
    while True:
        changed = set()
        for message in consumer.consume(1_000, 0.5):
            value = message.value()
            assert value is not None, message.error()
            payer, payee, amount = value.decode().split(",")
            for account, by in ((payer, -int(amount)), (payee, int(amount))):
                if account:
                    balances[account] += by
                    counters[account] += 1
                    changed.add(account)
        for half in ("a", "b"):
            pipeline = client.pipeline(transaction=True)
            for account in changed:
                if half in account:
                    pipeline.set(f"{COUNTERS}:{account}", counters[account])
                    if balances[account]:
                        pipeline.set(f"{ACCOUNTS}:{account}", balances[account])
                    else:
                        pipeline.delete(f"{ACCOUNTS}:{account}")
            pipeline.execute()
            if changed:
                time.sleep(_HALF_S)


if __name__ == "__main__":
    main()
