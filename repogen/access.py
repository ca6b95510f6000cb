"""How a server wants to be spoken to: certificates for TLS, and headers such as the key of a restricted protocol.

Both come from the environment, so that no secret stands in a manifest or on a command line.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repogen.errors import RepogenError

SECURE = "grpcs://"
CA = "REPOGEN_TLS_CA"
CERTIFICATE = "REPOGEN_TLS_CERT"
KEY = "REPOGEN_TLS_KEY"
HEADERS = "REPOGEN_HEADERS"
"""`name: value`, one a line."""


@dataclass(frozen=True)
class Access:
    """Paths of PEM files, "" for none, and the headers of every call."""

    ca: str = ""
    certificate: str = ""
    key: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # they may be secret

    def tls(self) -> Any:
        """Return gRPC's credentials; without a CA of its own, those that the machine trusts."""
        import grpc

        return grpc.ssl_channel_credentials(
            root_certificates=_content(CA, self.ca),
            private_key=_content(KEY, self.key),
            certificate_chain=_content(CERTIFICATE, self.certificate),
        )

    def with_headers(self, channel: Any) -> Any:
        """Return the channel, every call of which carries the headers."""
        if not self.headers:
            return channel
        import grpc

        headers = self.headers

        class _Headers(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc, unused-ignore]
            def intercept_unary_unary(self, proceed: Any, details: Any, request: Any) -> Any:
                return proceed(details._replace(metadata=(*(details.metadata or ()), *headers)), request)

        return grpc.intercept_channel(channel, _Headers())


def from_environment(environment: Mapping[str, str] = os.environ) -> Access:
    """Return what REPOGEN_TLS_CA, _CERT, _KEY and REPOGEN_HEADERS say. Raises RepogenError."""
    headers = []
    for number, line in enumerate(environment.get(HEADERS, "").splitlines(), start=1):
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not name.strip():
            raise RepogenError(f"line {number} is no `name: value`", where=HEADERS)
        headers.append((name.strip().lower(), value.strip()))
    return Access(environment.get(CA, ""), environment.get(CERTIFICATE, ""), environment.get(KEY, ""), tuple(headers))


def _content(variable: str, path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RepogenError(f"{path} cannot be read: {error.strerror}", where=variable) from None
