"""Runs a topology on a test's records and shows what its stores and topics then hold; needs no Kafka.

    topology = TopologyTest("app", build, session, tmp_path)
    topology.pipe("clicks", Record("ann", "home", 1_000), Record("ann", "cart", 2_000))
    assert topology.run().store("clicks-per-user") == {"ann": 2}

It does what TopologyTestDriver does in Kafka Streams. Spark runs the queries: the records piped since the last `run`
are one micro-batch of each query.

Nothing here talks to Kafka.
"""

from processor.testing.records import DeadLetter, Record
from processor.testing.session import shared_session
from processor.testing.topology_test import TopologyTest

__all__ = ("DeadLetter", "Record", "TopologyTest", "shared_session")
