"""Plans which node holds each task next: values in, values out.

Nothing here does I/O, and nothing here knows Kafka or the clock.
"""
