"""The admin API's OpenAPI 3.1 document, made from the operations that are served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.admin.views import ErrorView
from gateway.config import AdminRole

Json = dict[str, Any]
Answer = tuple[int, Any]
Handler = Callable[[Mapping[str, str], Any], Answer | Awaitable[Answer]]
"""Takes path parameters and the converted body; gives the status and what to answer."""

API_VERSION = "1"

_PARAMETERS = {"id": "A backend's id.", "name": "An API key's name."}
_SCHEMA = "#/components/schemas/{name}"
_ERRORS = {
    400: "The body, the config file, or a value in it, is wrong.",
    401: "The token is missing or wrong.",
    403: "The token's role does not allow it; or no token is configured and the client is not one "
    "of this machine's own.",
    404: "There is no such backend or key.",
    413: "The body is too large.",
    500: "The gateway failed.",
}


@dataclass(slots=True, frozen=True)
class Operation:
    """One method on one path.

    Attributes:
        path: below the mount point; parameters in braces.
        answers: by status, the type of the body, None where there is none.
        body: type of the request's body, None where it takes none.
        body_optional: an absent body means an empty object.
        partial: the body is a part of its type; it is checked, and handed over as it came.
        backend: takes a backend's id, which may be unknown.
        named: takes an API key's name, which may be unknown.
        refusable: may be wrong although it takes no body.
        role: what a token must allow; None for read where nothing can change, else admin.
        merge: makes one answer of several workers'; None where each worker's is the same.
    """

    method: str
    path: str
    id: str
    summary: str
    handler: Handler
    answers: Mapping[int, Any] = field(default_factory=dict)
    body: Any = None
    body_optional: bool = False
    partial: bool = False
    backend: bool = False
    named: bool = False
    refusable: bool = False
    role: AdminRole | None = None
    merge: Callable[[Sequence[Any]], Any] | None = None

    @property
    def needs(self) -> AdminRole:
        if self.role is not None:
            return self.role
        return AdminRole.READ if self.method == "GET" else AdminRole.ADMIN

    @property
    def errors(self) -> list[int]:
        """Statuses of the errors that it may answer."""
        statuses = {401, 403, 500}
        if self.body is not None:
            statuses |= {400, 413}
        if self.refusable:
            statuses.add(400)
        if self.backend or self.named:
            statuses.add(404)
        return sorted(statuses)


def document(operations: Sequence[Operation], mount: str) -> Json:
    """Args:
    mount: path under which the operations' paths are found.
    """
    types: list[Any] = [ErrorView]
    for operation in operations:
        types += (kind for kind in operation.answers.values() if kind is not None)
        if operation.body is not None:
            types.append(operation.body)
    schemas, components = msgspec.json.schema_components(types, ref_template=_SCHEMA)
    # Types are not all hashable, so schemas are found by place.
    found = iter(schemas[1:])
    paths: dict[str, Json] = {}
    for operation in operations:
        answers = {
            status: None if kind is None else next(found)
            for status, kind in operation.answers.items()
        }
        body = None if operation.body is None else next(found)
        item = paths.setdefault(operation.path, {})
        item[operation.method.lower()] = _operation(operation, answers, body)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "prefixgate admin API",
            "version": API_VERSION,
            "description": "Backends, policies and state of one gateway. Durations in seconds.",
        },
        "servers": [{"url": mount}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {str(status): _error(text) for status, text in _ERRORS.items()},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "admin.token of the settings. Without one the API answers "
                    "loopback clients only, and needs none from them.",
                }
            },
        },
    }


def _operation(operation: Operation, answers: Mapping[int, Any], body: Any) -> Json:
    responses: Json = {
        str(status): {
            "description": operation.summary,
            **({} if schema is None else {"content": _content(schema)}),
        }
        for status, schema in answers.items()
    }
    for status in operation.errors:
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    described: Json = {
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": responses,
    }
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": description,
            "schema": {"type": "string"},
        }
        for name, description in _PARAMETERS.items()
        if f"{{{name}}}" in operation.path
    ]
    if parameters:
        described["parameters"] = parameters
    if body is not None:
        described["requestBody"] = {
            "required": not operation.body_optional,
            "content": _content(body),
        }
    return described


def _error(description: str) -> Json:
    return {
        "description": description,
        "content": _content({"$ref": _SCHEMA.format(name=ErrorView.__name__)}),
    }


def _content(schema: Any) -> Json:
    return {"application/json": {"schema": schema}}
