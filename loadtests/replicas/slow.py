"""A network that can be slow: `python -m loadtests.replicas.slow PORT TARGET SECONDS`.

What comes on PORT goes to TARGET, both on loopback. From SIGUSR1 to SIGUSR2 every answer is held
for SECONDS, on the connections that there are too.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

from loadtests.process import HOST

_READ = 1 << 16


class Network:
    """
    Attributes:
        delay: seconds that what the target says is held.
    """

    def __init__(self, target: int) -> None:
        self.delay = 0.0
        self._target = target

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_writer = None
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
            ways = {
                asyncio.ensure_future(self._carry(reader, far_writer, held=False)),
                asyncio.ensure_future(self._carry(far_reader, writer, held=True)),
            }
            _, rest = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in rest:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass  # the target is gone: so is who wanted it
        finally:
            writer.close()
            if far_writer is not None:
                far_writer.close()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: bool
    ) -> None:
        while data := await reader.read(_READ):
            if held and self.delay:
                await asyncio.sleep(self.delay)
            writer.write(data)
            await writer.drain()


async def main(port: int, target: int, seconds: float) -> None:
    network = Network(target)

    def become(delay: float) -> None:
        network.delay = delay

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, become, seconds)
    loop.add_signal_handler(signal.SIGUSR2, become, 0.0)
    server = await asyncio.start_server(network.accept, HOST, port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
