"""What several workers answer to one question, as one answer.

Every function takes at least one answer, that of the worker that was asked first. What is counted
or under way is added up; what every worker knows for itself (a backend's state, the index) is the
first one's; of what says that something is wrong, the worst is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from gateway.admin.views import (
    BackendView,
    DiscoveryView,
    IndexView,
    KeyView,
    LineView,
    LoadView,
    PoolView,
    QueueView,
    RequestView,
)

T = TypeVar("T")
K = TypeVar("K")


def backends(answers: Sequence[list[BackendView]]) -> list[BackendView]:
    """Those that the first worker has; the others will have heard of them, too, in a moment."""
    by_id = _grouped((view for answer in answers for view in answer), lambda view: view.id)
    return [backend(by_id[view.id]) for view in answers[0]]


def backend(views: Sequence[BackendView]) -> BackendView:
    return replace(views[0], load=_load([view.load for view in views]))


def _load(views: Sequence[LoadView]) -> LoadView:
    """Each worker counts what the others sent, and may not have heard of the last of it yet."""
    return replace(
        views[0],
        in_flight=max(view.in_flight for view in views),
        decoding=max(view.decoding for view in views),
        pending_tokens=max(view.pending_tokens for view in views),
        pending_seconds=max(view.pending_seconds for view in views),
        context_tokens=max(view.context_tokens for view in views),
    )


def discovery(answers: Sequence[list[DiscoveryView]]) -> list[DiscoveryView]:
    by_name = _grouped((view for answer in answers for view in answer), lambda view: view.name)
    return [
        replace(view, failures=sum(each.failures for each in by_name[view.name]))
        for view in answers[0]
    ]


def index(views: Sequence[IndexView]) -> IndexView:
    """Each worker has the whole tree; the prefixes that are booked are its own requests'."""
    return replace(views[0], bookings=sum(view.bookings for view in views))


def queues(answers: Sequence[list[PoolView]]) -> list[PoolView]:
    pools = _grouped(
        (view for answer in answers for view in answer), lambda view: (view.model, view.role)
    )
    return [_pool(views) for views in pools.values()]


def _pool(views: Sequence[PoolView]) -> PoolView:
    lines = _grouped(
        ((id, line) for view in views for id, line in view.backends.items()), lambda pair: pair[0]
    )
    return replace(
        views[0],
        backends={id: _line([line for _, line in pairs]) for id, pairs in lines.items()},
        unplaced=sum(view.unplaced for view in views),
        tenants=max(view.tenants for view in views),
        queues={
            work_class: _queue([view.queues[work_class] for view in views])
            for work_class in views[0].queues
        },
    )


def _line(views: Sequence[LineView]) -> LineView:
    return LineView(
        waiting=sum(view.waiting for view in views),
        held_seconds=sum(view.held_seconds for view in views),
        pending_seconds=max(view.pending_seconds for view in views),
        open=all(view.open for view in views),
        hold=next((view.hold for view in views if view.hold is not None), None),
    )


def _queue(views: Sequence[QueueView]) -> QueueView:
    return QueueView(
        waiting=sum(view.waiting for view in views),
        waiting_tokens=sum(view.waiting_tokens for view in views),
        oldest_wait=max(view.oldest_wait for view in views),
        granted=sum(view.granted for view in views),
        cancelled=sum(view.cancelled for view in views),
        refused=_summed(view.refused for view in views),
    )


def requests(answers: Sequence[list[RequestView]]) -> list[RequestView]:
    """The oldest first."""
    return sorted((view for answer in answers for view in answer), key=lambda view: -view.age)


def keys(answers: Sequence[list[KeyView]]) -> list[KeyView]:
    by_name = _grouped((view for answer in answers for view in answer), lambda view: view.name)
    return [_key(by_name[view.name]) for view in answers[0]]


def _key(views: Sequence[KeyView]) -> KeyView:
    # One that counts with all replicas has the others' in it; the highest is the latest.
    together = [view for view in views if view.shared]
    counted, add = (together, max) if together else (views, sum)
    return replace(
        views[0],
        shared=bool(together),
        requests_used=add(view.requests_used for view in counted),
        tokens_used=add(view.tokens_used for view in counted),
        concurrent=add(view.concurrent for view in counted),
        requests_total=sum(view.requests_total for view in views),
        tokens_total=sum(view.tokens_total for view in views),
        limited=_summed(view.limited for view in views),
    )


def _grouped(values: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """In the order of each key's first value."""
    groups: dict[K, list[T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            sums[name] = sums.get(name, 0) + count
    return sums
