"""Prefill and decode engines of one protocol, side by side."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from gateway.types import Role
from tests.harness.pd.engine import Connector, Fabric, PdEngine
from tests.harness.pd.mooncake import Mooncake
from tests.harness.pd.nixl import SIDE_CHANNEL, NixlPull, NixlPush
from tests.harness.pd.reference import Prefill
from tests.harness.pd.sglang import Sglang
from tests.harness.pd.store import SharedStore
from tests.harness.pd.trtllm import Trtllm

CONNECTORS: dict[str, type[Connector]] = {
    kind.name: kind for kind in (NixlPull, NixlPush, Mooncake, Sglang, Trtllm, SharedStore)
}


class Pools:
    """Usable as a context manager.

    Args:
        dp_size: of the prefill engines.

    Attributes:
        prefills, decodes, unified: the engines by role.
    """

    def __init__(
        self, protocol: str, prefills: int = 1, decodes: int = 1, unified: int = 0, dp_size: int = 1
    ) -> None:
        self.protocol = protocol
        self.fabric = Fabric()
        self._stack = ExitStack()

        def start(role: Role, count: int, ranks: int = 1) -> list[PdEngine]:
            made = [
                PdEngine(CONNECTORS[protocol](), role, self.fabric, dp_size=ranks)
                for _ in range(count)
            ]
            for engine in made:
                self._stack.enter_context(engine)
            return made

        self.prefills = start(Role.PREFILL, prefills, dp_size)
        self.decodes = start(Role.DECODE, decodes)
        self.unified = start(Role.UNIFIED, unified)

    @property
    def engines(self) -> list[PdEngine]:
        return [*self.prefills, *self.decodes, *self.unified]

    @property
    def complaints(self) -> list[str]:
        return [what for engine in self.engines for what in engine.complaints]

    @property
    def held(self) -> int:
        """Tokens whose blocks some engine keeps for another."""
        return sum(engine.kv.held for engine in self.engines)

    def reset(self) -> None:
        """Forget what was recorded and behave like healthy engines."""
        self.fabric.store.clear()
        for engine in self.engines:
            engine.reset()

    def __enter__(self) -> Pools:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def known(engine: PdEngine) -> Prefill:
    """What has to be known of a prefill engine."""
    port = engine.companions[0].port if engine.companions else SIDE_CHANNEL
    return Prefill(engine.url, engine.engine_ids[0], port=port)
