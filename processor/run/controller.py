"""Opens what assigns tasks while a processor runs: a controller of its own, or one that acts already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from processor.application import Application
from processor.ownership.controller import OwnershipController
from processor.ownership.declared_settings import ownership_settings
from processor.ownership.topics.observed import check_published
from processor.reports.metrics import ProcessorMetrics
from processor.settings import ProcessorSettings
from processor.states.processor_states import ProcessorStates
from processor.topics.creation import ApplicationTopics, foreign_sources


def start_controller(
    settings: ProcessorSettings,
    app: Application,
    topics: ApplicationTopics,
    metrics: ProcessorMetrics,
    states: ProcessorStates,
    on_fatal: Callable[[BaseException], None],
) -> OwnershipController | None:
    """Start a controller; return None if the settings leave it to another one, which has these stores.

    Raises:
        ConfigurationError: it is left to another controller, and that has other stores.

    """
    declared = [*(each.declaration for each in app.stores if each.declaration), *app.followed_stores]
    stores = [replace(store, partition_count=topics.outputs[store.changelog_topic]) for store in declared]
    if settings.controller == "none":
        check_published(settings.brokers, app.application_id, stores, settings.source_wait_ms / 1000)
        return None
    controller = OwnershipController(
        settings.brokers,
        app.application_id,
        stores,
        ownership_settings(settings),
        metrics.controller.callbacks(states, metrics.paused, on_fatal),
        foreign_sources(app),
    )
    controller.start()
    return controller
