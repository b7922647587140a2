"""What an application's code says of its topics: builds it in a Spark session, and runs nothing."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from processor.application import Application
from processor.application.sources import KafkaSources
from processor.application.topology import Topology
from processor.settings import ProcessorSettings
from processor.spark.session import open_session
from processor.topics.creation import foreign_sources, wait_for_sources, wanted_topics
from statehouse.kafka.topics import TopicSpec, check_replicas


def declared_topics(topology: Topology, admin: AdminClient, settings: ProcessorSettings) -> list[TopicSpec]:
    """Return what the application's topics are to be.

    Raises:
        ConfigurationError: the application can't work, or a source topic doesn't exist.

    """
    session = open_session(topology.application_id, settings)
    app = Application(
        topology.application_id, KafkaSources(session, settings.brokers, max_offsets=1), settings.serde_options
    )
    topology.declare(app)
    app.encode_structs()
    specs = wanted_topics(admin, app, wait_for_sources(admin, foreign_sources(app), 0.0), settings)
    check_replicas(admin, specs)
    return specs
