"""Asking the admin API as the gateway mounts it, from a peer of one's choice."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount

from gateway.admin.api import admin_app
from gateway.admin.control import Control
from gateway.admin.operations import MOUNT
from gateway.config import Admin

LOCAL = ("127.0.0.1", 40_000)


class Client:
    """Attributes:
    peer: address that the requests come from.
    base: where they are sent; its host becomes the Host header.
    """

    def __init__(
        self,
        control: Control,
        token: str | None = None,
        *,
        settings: Admin | None = None,
        peer: tuple[str, int] | None = LOCAL,
        base: str = "http://127.0.0.1:8080",
    ) -> None:
        self._app = Starlette(
            routes=[Mount(MOUNT, admin_app(control, settings or Admin(token=token)))]
        )
        self.peer = peer
        self.base = base

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """`path` is what follows the mount point; options are httpx's."""

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await self._app(scope | {"client": self.peer}, receive, send)

        async def main() -> httpx.Response:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=self.base) as client:
                return await client.request(method, MOUNT + path, **options)

        return asyncio.run(main())
