"""The states of nodes and tasks, and the rules of checkpoints and ownership. No I/O, no threads, no clock."""
