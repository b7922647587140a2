"""The query node: restores state from changelogs, follows them, and answers reads for the partitions it holds."""
