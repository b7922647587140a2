"""The state directory: folders, locks and checkpoint files of tasks. Nothing here knows a store's content or Kafka."""
