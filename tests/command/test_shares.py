"""How many server processes there are, and what each of them gets."""

import pytest

from tokenfleet.cli import make_plan
from tokenfleet.options import Values
from tokenfleet.plan import RENDER_SERVER, Plan, Role
from tokenfleet.shares import num_processes, shares_of


def server(**values: object) -> Plan:
    return make_plan(Values(values), RENDER_SERVER, "m", "render")


def front(**values: object) -> Plan:
    on_kafka = {"bus": "kafka://127.0.0.1:9092", "store": "file:///s"}
    return make_plan(Values({**on_kafka, **values}), frozenset({Role.INGRESS}), "m", "serve")


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (2, 2), (8, 8), (64, 8)])
def test_a_render_server_uses_the_cores_but_not_all_memory(cores, count):
    assert num_processes(server(), cores) == count


def test_where_connections_are_not_spread_one_process_serves():
    assert num_processes(server(), 8, spreads=False) == 1
    assert num_processes(server(api_server_count=2), 8, spreads=False) == 2


def test_everything_else_is_one_process_unless_told_otherwise():
    assert num_processes(front(), 4) == 1
    assert num_processes(front(api_server_count=3), 4) == 3
    assert num_processes(server(api_server_count=16), 4) == 16


def test_each_process_has_a_number_and_the_port_that_was_found():
    shares = shares_of(server(port=0), 2, port=1234, num_cores=2)

    assert [share.process for share in shares] == [1, 2]
    assert [share.ingress.port for share in shares] == [1234, 1234]


def test_what_is_for_the_whole_server_is_divided():
    plan = server(store_memory_bytes=64 << 20, max_pending=7)

    first, second = shares_of(plan, 2, port=1, num_cores=11)

    assert first.fleet == second.fleet
    assert first.fleet.store_memory_bytes == 32 << 20
    assert first.ingress.max_pending == 4
    assert first.render.render_threads == 6


def test_no_share_is_nothing():
    plan = server(store_memory_bytes=1 << 20, max_pending=1)

    (share, *_) = shares_of(plan, 4, port=1, num_cores=2)

    assert share.fleet.store_memory_bytes == 1 << 20
    assert share.ingress.max_pending == 1


@pytest.mark.parametrize(("num_cores", "num_threads"), [(1, 1), (2, 2), (8, 4), (64, 8)])
def test_pictures_of_one_request_have_several_threads(num_cores: int, num_threads: int):
    share, *_ = shares_of(server(), 8, port=1, num_cores=num_cores)

    assert share.render.render_threads == num_threads


def test_threads_that_were_asked_for_are_given_to_each():
    (share, _) = shares_of(server(render_threads=6), 2, port=1, num_cores=2)

    assert share.render.render_threads == 6


def test_children_end_before_their_parent_gives_up():
    plan = server(shutdown_timeout_s=10)

    (share, _) = shares_of(plan, 2, port=1, num_cores=2)

    assert 5 < share.fleet.shutdown_timeout_s < 10
