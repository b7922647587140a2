"""From nothing but the wheel: installed by a user without rights, where no Go is, the local cluster comes up.

The wheels of the requirements are made beforehand, at the versions that are locked; all else happens as this user.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hatch_build import PROGRAM, PURE
from tests.deploy.files import ROOT
from tests.deploy.users import PATH, PYTHON, User, new_user
from tests.deploy.wheels import copy_jars
from tests.support.statehouse import ANY_PORTS
from tools.dist import build_wheel

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

UP_S: Final = 900.0


@pytest.fixture(scope="module")
def user(wheels: Path) -> Iterator[User]:
    """The user, with a virtual environment in which the package is, and with the jars that a first start downloads."""
    assert shutil.which("go", path=PATH) is None
    with new_user() as made:
        copy_jars(made.home / "cache")
        made.give(made.home / "cache")
        made.install(wheels, "statehouse[processor,http]")
        yield made


@pytest.mark.feature("wheel-alone-empty")
def test_up_answers_through_the_proxy(user: User) -> None:
    try:
        ran = user.statehouse("up", "--nodes", "2", *ANY_PORTS, timeout_s=UP_S)
        assert ran.code == 0, ran.out + ran.err
        answered = user.statehouse("get", "leader-boards", "1", "-o", "json")
        assert answered.code == 0, answered.err
        assert "Isabelle" in answered.out
        status = user.statehouse("status")
        assert "router served by  proxy" in status.out, status.out
        installed = next(user.environment.glob(f"lib/*/site-packages/{PROGRAM}"))
        served = user.statehouse("logs", "--lines", "10000", "router", "node-a", "node-b")
        assert served.out.count(str(installed)) >= 3, served.out
        page = user.run(PYTHON, "-c", PAGE.format(ran.out.split("page", 1)[1].split()[0]))
        assert page.out.startswith("200 text/html"), page.err
    finally:
        down = user.statehouse("down", timeout_s=UP_S)
    assert down.code == 0, down.err
    assert not (user.work / ".statehouse").exists()
    assert [*user.work.iterdir()] == []


PAGE: Final = "import urllib.request as r; a = r.urlopen('{}', timeout=10); print(a.status, a.headers['content-type'])"


@pytest.mark.feature("package-without-proxy")
def test_the_pure_wheel_says_what_it_lacks(wheels: Path, user: User, tmp_path: Path) -> None:
    pure = build_wheel(ROOT, tmp_path, PURE, {})
    shutil.copy(pure, wheels)
    other = user.home / "other"
    (client,) = wheels.glob("statehouse_client-*.whl")
    user.install(wheels, "--no-deps", "--target", str(other), str(client), str(wheels / pure.name))
    program = (
        f"import sys; sys.path.insert(0, {str(other)!r})\n"
        "from statehouse.observability import logs; logs.configure('INFO')\n"
        "from statehouse.link.proxy import proxy_for; from statehouse.settings import ServerSettings\n"
        "assert proxy_for(ServerSettings(application_id='app'), '127.0.0.1:0', print) is None"
    )
    said = user.python("-c", program)
    assert said.code == 0, said.err
    assert "install the wheel of this platform" in said.out + said.err
