"""Topologies with one mistake each, in the line that ends with `# mistake`.

EXPECTED is what `statehouse check` says of it, among others. Those in `running` are mistakes that no plan shows: they
raise for records.
"""
