"""Show the broker's settings of the store's changelog: `python -m examples.topic_configs.describe`."""

from __future__ import annotations

from typing import Annotated

import typer

from examples.topic_configs.topology import CONFIG, STORE, application_id
from statehouse.contract.topology import changelog_topic
from statehouse.kafka import clients
from statehouse.kafka.topics import topic_settings

_SHOWN = ("cleanup.policy", *CONFIG)


def main(
    bootstrap: Annotated[str, typer.Option(envvar="STATEHOUSE_BOOTSTRAP", help="Kafka's bootstrap servers.")],
) -> None:
    """Print the changelog's name, then a line for each of the settings that the code names."""
    topic = changelog_topic(application_id, STORE)
    settings = topic_settings(clients.admin(bootstrap, "describe"), topic)
    print(topic)
    for name in _SHOWN:
        print(f"  {name}={settings[name]}")


if __name__ == "__main__":
    typer.run(main)
