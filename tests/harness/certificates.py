"""Certificates for a test, from an authority that lives as long as it does."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Files:
    """Paths of PEM files."""

    cert: str
    key: str


class Authority:
    """Attributes:
    ca: path of its certificate.
    """

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self._directory = directory
        self._count = 0
        self._name = name
        self.ca = str(directory / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.ca)

    def issue(self, *names: str) -> Files:
        """A certificate for names or addresses, and its key."""
        issued = self._ca.issue_cert(*names)
        self._count += 1
        stem = self._directory / f"{self._name}-{self._count}"
        files = Files(f"{stem}.crt", f"{stem}.key")
        for number, part in enumerate(issued.cert_chain_pems):
            part.write_to_path(files.cert, append=number > 0)
        issued.private_key_pem.write_to_path(files.key)
        Path(files.key).chmod(0o600)
        return files

    def client(self, files: Files | None = None) -> ssl.SSLContext:
        """For a client that believes this authority, and shows a certificate if it has one."""
        context = ssl.create_default_context(cafile=self.ca)
        if files is not None:
            context.load_cert_chain(files.cert, files.key)
        return context

    def server(self, files: Files, *, wants_certificates: bool = False) -> ssl.SSLContext:
        """For a server; with `wants_certificates`, clients need one of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.cert, files.key)
        if wants_certificates:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
