"""The names of hosts, and the places that each stands for."""

from __future__ import annotations

from syrtos.launch.spec import Host, parse_hosts
from syrtos_clusters.ray.nodes import Nodes, Spot, gpus_of

A, B, C = (Spot(name, f"10.0.0.{number}") for number, name in enumerate("abc", 1))


def test_the_places_of_a_node_are_a_host() -> None:
    nodes = Nodes()
    assert nodes.hosts([A, B, A]) == (Host("10.0.0.1", 2), Host("10.0.0.2", 1))
    assert nodes.places("10.0.0.1") == (0, 2)
    assert nodes.places("10.0.0.9") == ()


def test_a_place_that_is_nowhere_belongs_to_no_host() -> None:
    assert Nodes().hosts([None, B]) == (Host("10.0.0.2", 1),)


def test_a_node_keeps_its_name_while_places_come_and_go() -> None:
    nodes = Nodes()
    nodes.hosts([A, B, C])
    assert nodes.hosts([A, None, C]) == (Host("10.0.0.1", 1), Host("10.0.0.3", 1))
    assert nodes.hosts([A, C, C]) == (Host("10.0.0.1", 1), Host("10.0.0.3", 2))
    assert nodes.places("10.0.0.3") == (1, 2)


def test_two_nodes_at_one_address_have_two_names() -> None:
    nodes = Nodes()
    again = Spot("d", A.address)
    assert nodes.hosts([A, again]) == (Host("10.0.0.1", 1), Host("10.0.0.1-2", 1))
    assert nodes.hosts([again, again]) == (Host("10.0.0.1-2", 2),)


def test_a_node_that_gets_another_gpu_is_a_new_host() -> None:
    nodes = Nodes()
    first, second = Spot("a", "10.0.0.1", ("0",)), Spot("a", "10.0.0.1", ("3",))
    assert nodes.hosts([first, B]) == (Host("10.0.0.1", 1), Host("10.0.0.2", 1))
    assert nodes.hosts([first, second]) == (Host("10.0.0.1-2", 2),)


def test_names_are_those_of_hosts() -> None:
    found = Nodes().hosts([Spot("a", "fd00::1"), Spot("b", "::1")])
    assert parse_hosts(",".join(f"{host.name}:{host.slots}" for host in found)) == found


def test_an_agent_sees_the_gpus_of_all_places_of_its_node() -> None:
    assert gpus_of([Spot("a", "x", ("1", "0")), Spot("a", "x", ("3",))]) == "1,0,3"
    assert gpus_of([Spot("a", "x", ("0",)), Spot("a", "x", ("0",))]) == "0"  # each has a half of it
    assert gpus_of([A]) == ""
