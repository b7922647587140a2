"""What a restore by a peer's files takes, beside one by the changelog and a copy of the files."""
