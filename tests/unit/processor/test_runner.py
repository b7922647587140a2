import pytest

from processor.runner import Topology, _beginning
from statehouse.errors import ConfigurationError


def test_a_topology_is_a_module_with_an_id_and_build():
    topology = Topology.load("examples.leaderboard.topology")
    assert topology.application_id == "video-game-leaderboard"
    assert callable(topology.build)


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(ConfigurationError, match=r"module 'examples.nothing' not found"):
        Topology.load("examples.nothing")


def test_a_module_without_a_topology_is_refused():
    with pytest.raises(ConfigurationError, match="must define application_id"):
        Topology.load("examples.leaderboard.sample")


def test_a_long_reason_is_cut():
    assert _beginning("\n".join("abcdefghijkl")) == "\n".join("abcdefgh")
