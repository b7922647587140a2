"""Network namespaces of tests: cut one way or both, and gone in the end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import netns
from tests.support.netns import Namespace, Network
from tests.support.polling import poll_until

PORT = 5000
SHORT_S = 0.3
# Answers every datagram, and prints it first: what it has heard is known even if its answer is lost.
ECHO = f"""
import socket, sys
plug = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
plug.bind((sys.argv[1], {PORT}))
print("ready", flush=True)
while True:
    data, sender = plug.recvfrom(100)
    print(data.decode(), flush=True)
    try:
        plug.sendto(data, sender)
    except PermissionError:  # how the kernel tells of a rule that drops
        pass
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network() as network:
        yield network


@contextmanager
def echo(namespace: Namespace) -> Iterator[subprocess.Popen[str]]:
    command = [*namespace.prefix, sys.executable, "-c", ECHO, namespace.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def answers(namespace: Namespace, word: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plug:
        plug.settimeout(SHORT_S)
        plug.sendto(word.encode(), (namespace.address, PORT))
        try:
            return plug.recv(100) == word.encode()
        except TimeoutError:
            return False


def test_cut_in_each_direction(network: Network) -> None:
    namespace = network.namespace()
    with echo(namespace) as process:
        poll_until(lambda: answers(namespace, "whole"), 20, "an answer from the namespace")
        namespace.cut(incoming=False)
        assert not answers(namespace, "heard")
        namespace.cut(outgoing=False)
        assert not answers(namespace, "unheard")
        namespace.cut()
        assert not answers(namespace, "silence")
        namespace.heal()
        poll_until(lambda: answers(namespace, "healed"), 20, "an answer after healing")
        process.kill()
        heard = (process.stdout or []) and process.stdout.read().split()
    assert "heard" in heard
    assert not {"unheard", "silence"} & set(heard)


def test_cut_of_one_port(network: Network) -> None:
    namespace = network.namespace()
    script = f"import socket; socket.create_connection(('{network.host}', {{port}}), timeout={SHORT_S})"
    with socket.create_server((network.host, 0)) as one, socket.create_server((network.host, 0)) as other:

        def reaches(server: socket.socket) -> bool:
            code = script.format(port=server.getsockname()[1])
            return (
                subprocess.run(
                    [*namespace.prefix, sys.executable, "-c", code], capture_output=True, check=False
                ).returncode
                == 0
            )

        assert reaches(one)
        for way in ({"incoming": False}, {"outgoing": False}):
            namespace.cut(port=one.getsockname()[1], **way)
            assert not reaches(one)
            assert reaches(other)


def test_leaves_nothing_behind_and_cleans_up_after_dead_runs() -> None:
    script = (
        "import os, signal, subprocess; from tests.support.netns import Network\n"
        "namespace = Network().__enter__().namespace()\n"
        "inside = subprocess.Popen([*namespace.prefix, 'sleep', '600'], stdout=subprocess.DEVNULL)\n"
        "print(os.getpid(), inside.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    owner, inside = done.stdout.split()
    assert any(name.startswith(f"sf{owner}.") for name in netns._names())
    netns.remove_leftovers()
    assert not any(name.startswith(f"sf{owner}.") for name in netns._names())
    poll_until(lambda: not is_alive(int(inside)), 20, "the process inside to end")


def test_removes_all_when_a_test_fails() -> None:
    script = (
        "import os; from tests.support.netns import Network\n"
        "with Network() as network:\n"
        "    network.namespace()\n"
        "    print(os.getpid(), flush=True)\n"
        "    raise ValueError\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "ValueError" in done.stderr
    assert not any(name.startswith(f"sf{done.stdout.strip()}.") for name in netns._names())


@pytest.mark.parametrize(("missing", "package"), [("ip", "iproute2"), ("nft", "nftables")])
def test_missing_program_fails_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, missing: str, package: str
) -> None:
    found = netns.shutil.which
    monkeypatch.setattr(netns.shutil, "which", lambda program: None if program == missing else found(program))
    with pytest.raises(pytest.fail.Exception, match=f"install {package}"), Network():
        pass


def test_without_root_fails_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns.os, "geteuid", lambda: 1000)
    with pytest.raises(pytest.fail.Exception, match="run it as root"), Network():
        pass


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that nobody has waited for yet is dead all the same.
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
