from typing import Any

import pytest

from processor.settings import ProcessorSettings
from statehouse.errors import ConfigurationError


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"bootstrap": ""}, "at least one broker"),
        ({"checkpoint_dir": ""}, "checkpoint_dir is empty"),
        ({"shuffle_partitions": 0}, "shuffle_partitions must be at least 1"),
        ({"write_timeout_s": 0.0}, "write_timeout_s must be more than 0"),
        ({"commit_interval_s": -1.0}, "commit_interval_s can't be negative"),
        ({"changelog_additional_retention_ms": -1}, "changelog_additional_retention_ms can't be negative"),
        ({"updates_retention_ms": 0}, "updates_retention_ms must be at least 1"),
    ],
)
def test_what_cannot_work_is_refused(setting: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        ProcessorSettings(**({"bootstrap": "b:1", "checkpoint_dir": "/c"} | setting))
