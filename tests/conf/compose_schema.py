"""The part of the Compose specification that docker-compose.yml may use, as a JSON schema.

Stricter than the specification: one way to write each thing, and nothing that gives a container
more rights than it needs.
"""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m|h)$"}
NAMES = {"type": "array", "items": TEXT, "uniqueItems": True}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _map(values: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}


HEALTHCHECK = _object(
    {
        "test": {**TEXTS, "prefixItems": [{"enum": ["CMD", "CMD-SHELL"]}]},
        "interval": DURATION,
        "timeout": DURATION,
        "start_period": DURATION,
        "retries": {"type": "integer", "minimum": 1},
    },
    "test",
)
DEPENDENCY = _object(
    {
        "condition": {
            "enum": ["service_started", "service_healthy", "service_completed_successfully"]
        }
    },
    "condition",
)
SERVICE = _object(
    {
        "build": TEXT,
        "image": {"type": "string", "pattern": r"^[\w./-]+(:[\w.-]+)?$"},
        "command": TEXTS,
        "environment": _map({"type": "string"}),
        "ports": {
            "type": "array",
            "items": {"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"},
        },
        "volumes": {
            "type": "array",
            "items": {"type": "string", "pattern": r"^(\./[^:]+:/[^:]+:ro|[\w-]+:/[^:]+)$"},
        },
        "networks": NAMES,
        "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
        "stop_grace_period": DURATION,
        "ulimits": _map({"type": "integer", "minimum": 1}),
        "healthcheck": HEALTHCHECK,
        "depends_on": _map(DEPENDENCY),
    },
    "image",
    "networks",
)
COMPOSE: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": r"^[a-z0-9][a-z0-9_-]*$"},
        "services": {**_map(SERVICE), "minProperties": 1},
        "networks": _map({"anyOf": [{"type": "null"}, _object({"name": TEXT})]}),
        "volumes": _map({"anyOf": [{"type": "null"}, _object({"name": TEXT})]}),
    },
    "patternProperties": {"^x-": {}},
    "required": ["services"],
    "additionalProperties": False,
}
