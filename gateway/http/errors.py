"""Refusals and failures that the gateway itself answers, in one hierarchy.

RequestError
├── Malformed           400  the request cannot be read
├── Unauthenticated     401  no API key that is known (keys.py)
├── NotAllowed          403
├── UnknownModel        404
├── WrongMethod         405, with Allow
├── LostResponse        404  a stored response whose backend is gone
├── UnknownResponse     404  a stored response that was made for another tenant
├── TooLarge            413
├── UnsupportedCoding   415
├── LoopDetected        508
├── SlowBody            408
├── BadHead             400, 405, 408, 414 or 431; the connection ends
├── RateLimited         429, with Retry-After: the API key's limits (quotas.py)
├── Overloaded          429 or 503, with Retry-After
│   ├── LimitsUnknown   503  Redis is away, and so are the API key's limits (quota_sharing.py)
│   └── BodiesFull      503
└── UpstreamBroke       502 or 504
"""

from __future__ import annotations

from gateway.fleet.upstream import UpstreamFailure
from gateway.http.failures import BROKEN
from gateway.types import Outcome


class RequestError(Exception):
    """An answer that is an error, before any byte of another answer was sent.

    Attributes:
        status: HTTP status.
        type, code, param: as in OpenAI's error object; dialects translate.
        retry_after: seconds, None when trying again later does not help.
        close: the connection cannot be used again (a body was left unread).
        headers: further ones of the answer.
    """

    status = 400
    type = "invalid_request_error"
    outcome = Outcome.CLIENT_ERROR
    close = False
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.retry_after = retry_after


class Malformed(RequestError):
    pass


class NotAllowed(RequestError):
    """What is asked for is not for clients, or not for this one."""

    status = 403
    type = "permission_error"


class UnknownModel(RequestError):
    status = 404

    def __init__(self, model: str) -> None:
        shown = model if len(model) <= 200 else model[:200] + "..."
        super().__init__(
            f"The model {shown!r} is not served here. GET /v1/models lists those that are.",
            code="model_not_found",
            param="model",
        )


class WrongMethod(RequestError):
    status = 405
    headers = ((b"allow", b"POST"),)

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"{path} takes POST, not {method[:20]}.", code="method_not_allowed")


class LostResponse(RequestError):
    status = 404

    def __init__(self, param: str | None) -> None:
        super().__init__(
            "The response is lost: the backend that kept it has been removed. Send the whole"
            " conversation again.",
            code="response_not_found",
            param=param,
        )


class UnknownResponse(RequestError):
    status = 404

    def __init__(self, param: str | None) -> None:
        super().__init__("There is no such response here.", code="response_not_found", param=param)


class TooLarge(RequestError):
    status = 413
    close = True


class UnsupportedCoding(RequestError):
    status = 415
    close = True


class LoopDetected(RequestError):
    status = 508
    type = "loop_detected_error"
    close = True

    def __init__(self) -> None:
        super().__init__(
            "The request has come back to this gateway: a backend's URL leads to the gateway"
            " itself, or to another one that sends it here.",
            code="loop_detected",
        )


class SlowBody(RequestError):
    status = 408
    close = True


class BadHead(RequestError):
    close = True

    def __init__(self, message: str, *, code: str, status: int = 400) -> None:
        super().__init__(message, code=code)
        self.status = status


class Overloaded(RequestError):
    type = "overloaded_error"
    outcome = Outcome.REJECTED

    def __init__(self, message: str, *, status: int, code: str, retry_after: int) -> None:
        super().__init__(message, code=code, retry_after=retry_after)
        self.status = status


class NoDescriptors(Overloaded):
    def __init__(self) -> None:
        super().__init__(
            "The gateway has as many connections open as it can.",
            status=503,
            code="no_descriptors",
            retry_after=1,
        )


class BodiesFull(Overloaded):
    close = True

    def __init__(self) -> None:
        super().__init__(
            "The bodies of other requests take up all the memory there is for them.",
            status=503,
            code="bodies_full",
            retry_after=1,
        )


class UpstreamBroke(RequestError):
    type = "upstream_error"

    def __init__(self, failure: UpstreamFailure) -> None:
        row = BROKEN[failure.kind]
        super().__init__(row.message, code=row.name)
        assert row.status is not None
        self.status = row.status
        self.outcome = row.outcome


class InternalFailure(RequestError):
    status = 500
    type = "internal_error"
    outcome = Outcome.INTERNAL_ERROR
