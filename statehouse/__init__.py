"""Statehouse: queryable state for Spark.

The shared kernel: imported by the processor, the query service and the router, and importing none of them.
"""

import os

# Before grpc is imported, which reads this once. With it, gRPC's handlers run in each process that Python forks; where
# threads are in calls they are skipped half-way and now and then break the child: Spark's Java, started in a process
# that also holds a client, would end immediately (JAVA_GATEWAY_EXITED). No channel of ours is used after a fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
