"""Whatever order records and routing tables come in, calls go to the newest version that can be routed."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from router.version_core import VersionCore
from router.version_switch import VersionSwitch
from statehouse.contract.version_names import FIRST
from statehouse.contract.versions import VersionRefused, Versions

NAMES = ("v1", "v2", "v3")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["deploy", "promote", "retire"]), st.sampled_from(NAMES)),
        st.tuples(st.just("table"), st.sampled_from(NAMES)),
    ),
    max_size=30,
)


class Core:
    """What the switch knows of a core."""

    def __init__(self, version: str) -> None:
        self.version, self.is_routed, self.is_closed = version, False, False
        self.left = asyncio.Event()

    async def close(self) -> None:
        self.is_closed = True


@given(STEPS, st.booleans())
def test_calls_go_to_the_version_that_is_to_serve_once_it_can_be_routed(
    steps: list[tuple[str, str]], begins_routed: bool
) -> None:
    asyncio.run(switched(steps, begins_routed=begins_routed))


def changed(versions: Versions, what: str, name: str) -> Versions:
    try:
        match what:
            case "deploy":
                return versions.deployed(name)
            case "promote":
                return versions.promoted(name, 0)
            case _:
                return versions.retired(name, 1)
    except VersionRefused:
        return versions


async def switched(steps: list[tuple[str, str]], *, begins_routed: bool) -> None:
    made: dict[str, Core] = {}
    switches: list[tuple[str, str]] = []

    def make(version: str) -> VersionCore:
        made[version] = Core(version)
        return cast("VersionCore", made[version])

    first = cast("Core", make(FIRST))
    first.is_routed = begins_routed

    def note(before: Any, after: Any) -> None:
        switches.append((before.version, after.version))

    switch = VersionSwitch(cast("VersionCore", first), make, note)
    versions, before = Versions(), first
    for what, name in steps:
        if what == "table":
            if name in made:
                made[name].is_routed = True
        else:
            versions = changed(versions, what, name)
        switch.take(versions)
        switch.go_on()
        await asyncio.sleep(0)  # what is closed is closed in the background
        serving, wanted = cast("Core", switch.serving), made[versions.serving]
        if wanted.is_routed or not before.is_routed:
            assert serving is wanted
        else:
            assert serving is before
        assert not serving.left.is_set()
        assert not serving.is_closed
        if serving is not before:
            assert before.left.is_set()
            assert switches[-1] == (before.version, serving.version)
        for version, core in made.items():
            gone = version not in versions.all and core is not serving and version != FIRST
            assert core.is_closed == gone
        before = serving
    await switch.close()
