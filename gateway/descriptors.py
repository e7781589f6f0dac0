"""File descriptors: one for each client, one for each request at a backend."""

from __future__ import annotations

import logging
import resource

from gateway.config import ConfigError, Settings

logger = logging.getLogger("prefixgate")

OWN = 64
"""That are no connection: the listening socket, logs, probes, what Python has open."""


def needed(settings: Settings) -> int:
    """Descriptors with which every limit of the settings can be reached, for one model."""
    classes = (settings.scheduling.prefill, settings.scheduling.decode)
    under_way = sum(each.max_requests for each in classes) * max(1, len(settings.backends))
    waiting = sum(each.max_waiting for each in classes)
    return OWN + 2 * under_way + waiting


def raise_limit(settings: Settings) -> None:
    """Raise the soft limit as far as it goes, and say when that is not far enough.

    Raises:
        ConfigError: not even one request at each backend could be served.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            logger.warning("the limit of %d descriptors cannot be raised: %s", soft, error)
    if soft == resource.RLIM_INFINITY:
        return
    least = OWN + 2 * max(1, len(settings.backends))
    if soft < least:
        raise ConfigError(
            f"the process may have {soft} descriptors open, and needs {least} at least: raise "
            "ulimit -n (systemd: LimitNOFILE, Docker: ulimits.nofile)"
        )
    wanted = needed(settings)
    if soft < wanted:
        logger.warning(
            "the process may have %d descriptors open, enough for %d requests at once; the limits "
            "of scheduling allow so many that %d are needed: raise ulimit -n (systemd: "
            "LimitNOFILE, Docker: ulimits.nofile), or lower max_requests and max_waiting",
            soft,
            (soft - OWN) // 2,
            wanted,
        )
