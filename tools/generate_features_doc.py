"""Write `docs/features.md` from the markers of tests; `--check` fails when it is not what would be written.

`tests/features.toml` has the features; a test carries `@pytest.mark.feature("name")` for each that it shows.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from typing import Final

from tools.generated_page import ROOT, write_or_check

_HEAD: Final = """# Features, and their tests

<!-- Written by tools/generate_features_doc.py from tests/features.toml and the markers of tests;
run `make docs` after a change there. -->

Every feature has tests that fail without it. Behind it stand its name and how many they are; a number after `+` counts
those that `make test-long` runs. `git grep 'feature("NAME")' tests` shows them. [Differences](differences.md) has how
results differ from Kafka Streams', and [comparison](comparison.md) what others offer.
"""


def marked() -> Iterator[tuple[str, bool]]:
    """Yield the name in each marker `feature`, and whether its test takes long."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        is_all_long = any(
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "pytestmark"
            and "pytest.mark.long" in ast.unparse(node.value)
            for node in tree.body
        )
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                words = [ast.unparse(each) for each in node.decorator_list]
                for each in node.decorator_list:
                    if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.feature":
                        yield ast.literal_eval(each.args[0]), is_all_long or "pytest.mark.long" in words


def text() -> str:
    """Return the whole page; end with a message if a feature has no test, or a marker names none."""
    known = tomllib.loads((ROOT / "tests" / "features.toml").read_text(encoding="utf-8"))
    short, long = Counter[str](), Counter[str]()
    for name, is_long in marked():
        (long if is_long else short)[name] += 1
    names = {name for features in known.values() for name in features}
    if wrong := sorted(names ^ (short.keys() | long.keys())):
        sys.exit(f"tests/features.toml: without a test, or without a text: {', '.join(wrong)}")
    page = _HEAD
    for section, features in known.items():
        page += f"\n## {section}\n\n"
        for name, said in features.items():
            count = f"{short[name]}+{long[name]}" if long[name] else f"{short[name]}"
            page += f"- {said}. `{name}:{count}`\n"
    return page


if __name__ == "__main__":
    write_or_check(__doc__, "docs/features.md", text, "tests/features.toml and the tests")
