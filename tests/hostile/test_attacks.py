"""Every attack gets its right answer, neighbours are answered beside it, and no process ends."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hostile.attack import Attack
from tests.hostile.attacks import all_attacks
from tests.hostile.server import Server

NEIGHBOUR_S = 15.0
"""`bench/hostile.py` measures what the goal is; here the machine may be busy with other tests."""

pytestmark = pytest.mark.timeout(600)


class Servers:
    """One server at a time: the next one is started when an attack is for another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._group: tuple[str, tuple[str, ...]] | None = None
        self._stack = ExitStack()

    def running(self, attack: Attack) -> Server:
        if self._group != attack.group:
            self.close()
            self._server = self._stack.enter_context(Server(attack.group, self._folder))
            self._group = attack.group
        if not self._server.is_running:
            self._server.start()  # an attack before this one ended it, and has failed for that
        return self._server

    def close(self) -> None:
        self._stack.close()
        self._group = None


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("server"))
    yield servers
    servers.close()


def _id(attack: Attack) -> str:
    return "-".join([attack.model, *attack.flags, attack.name]).replace(" ", "_")


@pytest.mark.parametrize("attack", all_attacks(), ids=_id)
async def test_an_attack_is_held(servers: Servers, attack: Attack) -> None:
    server = servers.running(attack)

    result = await server.suffer(attack)

    assert server.is_running, f"the server ended:\n{server.output()[-4000:]}"
    assert attack.is_right(result.answer), (result.answer.status, result.answer.body[:1000])
    assert {chat.status for chat in result.chats} <= {200}
    assert max((chat.took for chat in result.chats), default=0.0) < NEIGHBOUR_S
    assert server.is_healthy()
