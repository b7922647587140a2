"""Serdes in the wire format of Confluent's schema registry: Avro, Protobuf and JSON Schema.

They are plug-ins as those of other packages are; the extra `registry` brings what they need. Decoding by a schema that
is known is done in memory. Nothing here is imported before a store names one of these serdes.
"""
