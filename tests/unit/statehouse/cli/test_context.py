"""`statehouse context`: what is kept, and which router a command asks."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from statehouse.cli.addresses import Given, RouterAddress, choose
from statehouse.cli.context_file import RouterContext
from statehouse.cli.exits import ExitCode
from statehouse.cli.main import app
from statehouse.errors import ConfigurationError
from statehouse.rpc.credentials import ClientTls
from tests.support.fake_router import fake_router
from tests.support.variables import without_ours

Run = Callable[..., Result]
SECRET = "eyJhbGciOiJIUzI1NiJ9.c2VjcmV0.c2ln"  # noqa: S105 - nobody's


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    without_ours(monkeypatch)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config" / "statehouse" / "contexts.toml"


@pytest.fixture
def run(file: Path) -> Run:
    return lambda *arguments, env=None: CliRunner().invoke(app, list(arguments), env=env)


def shown(run: Run, *options: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = run("context", "show", "-o", "json", *options, env=env)
    assert done.exit_code == ExitCode.DONE, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_context_is_added_used_listed_and_removed(run: Run, file: Path) -> None:
    assert run("context", "list").stdout.split() == ["CURRENT", "NAME", "ROUTERS", "SHOWS"]
    added = run("context", "add", "production", "--router", "r1:7100", "--router", "r2:7100,r3:7100")
    assert added.exit_code == ExitCode.DONE
    assert "`statehouse context use production` makes commands go there" in added.stderr
    assert shown(run)["source"] == "default"

    assert run("context", "use", "production").exit_code == ExitCode.DONE
    assert shown(run) == {
        "router": "r1:7100,r2:7100,r3:7100",
        "source": "context production",
        **dict.fromkeys(("tls_ca", "tls_certificate", "tls_key", "token_file", "tls_server_name")),
    }
    assert json.loads(run("context", "list", "-o", "json").stdout)[0]["current"] is True

    again = run("context", "add", "production", "--router", "r4:7100")
    assert again.exit_code == ExitCode.USAGE
    assert "--force puts this one in its place" in again.stderr
    assert run("context", "add", "production", "--router", "r4:7100", "--force").exit_code == ExitCode.DONE
    assert shown(run)["router"] == "r4:7100"

    assert run("context", "use", "--none").exit_code == ExitCode.DONE
    assert shown(run)["source"] == "default"
    assert run("context", "remove", "production").exit_code == ExitCode.DONE
    unknown = run("context", "use", "production")
    assert unknown.exit_code == ExitCode.USAGE
    assert "there is no context 'production'; known: none" in unknown.stderr
    assert "contexts.toml" in file.name


@pytest.mark.feature("contexts-routers-tls")
def test_only_paths_are_kept_for_the_owner_alone(run: Run, file: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "ca.pem").write_text("a certificate")
    done = run("context", "add", "a", "--router", "r:1", "--token-file", "token", "--tls-ca", "ca.pem", "--use")
    assert done.exit_code == ExitCode.DONE, done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert shown(run)["token_file"] == str(tmp_path / "token"), "also for commands that run elsewhere"
    assert [each.name for each in file.parent.iterdir()] == [file.name]

    file.chmod(0o644)
    run("context", "use", "--none")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    listed = [run("context", *words, "-o", "yaml").stdout for words in (["list"], ["show", "--context", "a"])]
    assert SECRET not in "".join([file.read_text(), done.stderr, *listed])


def test_a_token_in_the_place_of_its_file_is_not_repeated(run: Run, file: Path) -> None:
    done = run("context", "add", "a", "--router", "r:1", "--token-file", SECRET, "--tls-ca", "/")
    assert done.exit_code == ExitCode.USAGE
    assert SECRET not in done.stdout + done.stderr
    assert not file.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--router", "r"], "'r' is no router's address: give HOST:PORT"),
        (["--router", "r:1", "--tls-ca", "nowhere.pem"], "there is no file nowhere.pem"),
        (["--router", "r:1", "--tls-certificate", "/dev/null"], "there is no file /dev/null"),
        (["--router", "r:1", "--tls-server-name", "n"], "give --tls-ca or STATEHOUSE_TLS_CA, too"),
    ],
)
def test_what_can_not_work_is_not_added(run: Run, file: Path, options: list[str], said: str) -> None:
    done = run("context", "add", "a", *options)
    assert done.exit_code == ExitCode.USAGE
    assert said in done.stderr
    assert not file.exists()
    assert run("context", "add", "../a", "--router", "r:1").exit_code == ExitCode.USAGE
    assert run("context", "add", "a").exit_code == ExitCode.USAGE
    assert run("context", "use").exit_code == run("context", "use", "a", "--none").exit_code == ExitCode.USAGE


@pytest.mark.feature("contexts-routers-tls")
def test_flags_come_before_variables_before_the_context_before_the_directory(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".statehouse").mkdir()
    (tmp_path / ".statehouse" / "state.json").write_text(json.dumps({"ports": {"router": 7}}))
    assert shown(run)["router"] == "127.0.0.1:7"
    for name in ("used", "named"):
        run("context", "add", name, "--router", f"{name}:1")
    run("context", "use", "used")

    def router(*options: str, **variables: str) -> tuple[str, str]:
        env = {f"STATEHOUSE_{name}": value for name, value in variables.items()}
        found = shown(run, *options, env=env)
        return found["router"], found["source"]

    assert router() == ("used:1", "context used")
    assert router(CONTEXT="named") == ("named:1", "context named")
    assert router(CONTEXT="") == ("127.0.0.1:7", "local cluster in .statehouse")
    assert router(ROUTER="variable:1", CONTEXT="named") == ("variable:1", "STATEHOUSE_ROUTER")
    assert router("--context", "named", ROUTER="variable:1") == ("named:1", "context named")
    assert router("--router", "flag:1", "--context", "named", ROUTER="variable:1") == ("flag:1", "--router")
    assert router("--context", "", ROUTER="variable:1")[0] == "127.0.0.1:7"
    assert run("context", "show", "--context", "nowhere").exit_code == ExitCode.USAGE


CONTEXT = RouterContext("c", ("r1:1", "r2:1"), {"ca": "/c/ca", "token": "/c/token"})
LOCAL = RouterAddress("127.0.0.1:7", ClientTls(Path("/l/ca"), Path("/l/pem"), Path("/l/key")), "local")


def given(router: str = "", **tls: str) -> Given:
    return Given(router, tls, "flag")


@pytest.mark.feature("contexts-routers-tls")
@pytest.mark.parametrize(
    ("layers", "context", "target", "tls"),
    [
        ([given()], CONTEXT, "r1:1,r2:1", ClientTls(Path("/c/ca"), token=Path("/c/token"))),
        ([given("r2:1")], CONTEXT, "r2:1", ClientTls(Path("/c/ca"), token=Path("/c/token"))),
        ([given("r2:1,other:1")], CONTEXT, "r2:1,other:1", None),
        ([given("other:1")], CONTEXT, "other:1", None),
        ([given("other:1"), given(ca="/v/ca")], CONTEXT, "other:1", ClientTls(Path("/v/ca"))),
        ([given(token="/f/token")], CONTEXT, "r1:1,r2:1", ClientTls(Path("/c/ca"), token=Path("/f/token"))),  # noqa: S106
        ([given("127.0.0.1:7")], CONTEXT, "127.0.0.1:7", LOCAL.tls),
        ([given()], None, "127.0.0.1:7", LOCAL.tls),
        ([given("other:1")], None, "other:1", None),
    ],
)
def test_what_is_shown_goes_only_where_it_belongs(
    layers: list[Given], context: RouterContext | None, target: str, tls: ClientTls | None
) -> None:
    chosen = choose(layers, context, LOCAL)
    assert (chosen.target, chosen.tls) == (target, tls)


def test_a_certificate_and_its_key_come_from_one_place() -> None:
    context = RouterContext("c", ("r:1",), {"ca": "/ca", "certificate": "/c/pem", "key": "/c/key"})
    chosen = choose([given(certificate="/f/pem", key="/f/key")], context, None)
    assert chosen.tls == ClientTls(Path("/ca"), Path("/f/pem"), Path("/f/key"))
    with pytest.raises(ConfigurationError, match="go together"):
        choose([given(certificate="/f/pem")], context, None)


@pytest.mark.parametrize(
    "text",
    [
        "contexts = 1",
        "[contexts.a]\n",
        '[contexts.a]\nrouters = "r:1"\n',
        '[contexts.a]\nrouters = ["r:1"]\ntoken = "secret"\n',
        '[contexts.a]\nrouters = ["r:1"]\ntls_ca = 1\n',
        'current = "b"\n[contexts.a]\nrouters = ["r:1"]\n',
        "[",
        "\xff",
    ],
)
def test_a_file_that_can_not_be_used_says_so(run: Run, file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode("latin-1"))
    for words in (["context", "list"], ["get", "boards", "1"]):
        done = run(*words)
        assert done.exit_code == ExitCode.USAGE
        assert f"{file} can't be used" in done.stderr
        assert "secret" not in done.stderr
    assert run("context", "show", "--context", "").exit_code == ExitCode.DONE


@pytest.mark.feature("reasons-failures-explained")
def test_names_are_completed_by_the_router_and_silently_not_without_one(run: Run) -> None:
    def completed(*words: str) -> list[str]:
        line = " ".join(["statehouse", *words])
        env = {"_STATEHOUSE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
        done = CliRunner().invoke(app, [], env=env, prog_name="statehouse")
        assert done.stderr == ""
        return done.stdout.split()

    run("context", "add", "production", "--router", "127.0.0.1:1")
    assert completed("context", "use", "p") == ["production"]
    assert completed("errors", "explain", "LAG") == ["LAG_EXCEEDS_BOUND"]
    with fake_router() as router:
        run("context", "add", "test", "--router", router.target)
        assert completed("get", "--router", router.target, "b") == ["boards"]
        assert completed("stores", "describe", "--context", "test", "") == ["boards"]
        assert completed("partitions", "list", "--context", "test", "--node", "n") == ["node-a"]
        assert completed("nodes", "drain", "--router", router.target, "n") == ["node-a"]
    assert completed("get", "--context", "production", "b") == []
    assert completed("get", "--context", "nowhere", "b") == []
