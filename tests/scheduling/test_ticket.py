import msgspec

from gateway.config import Scheduling
from gateway.scheduling.line import Line
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.ticket import Refusal, RefusalReason, Refused, Ticket
from gateway.types import Match
from tests.scheduling.virtual import PREFILL, ask


def ticket(**options: object) -> Ticket:
    return Ticket(ask(PREFILL), print, print, **options)


def test_a_client_can_only_shorten_its_wait() -> None:
    """Q08."""
    for asked, effective in ((None, 5.0), (1.0, 1.0), (30.0, 5.0)):
        waiting = ticket(max_wait=asked)
        waiting.arrive(7, 100.0, 5.0)
        assert waiting.expires == 100.0 + effective


def test_refresh_looks_again_and_relabels_nothing() -> None:
    found = Match({"a": 1}, {"a": 90.0})
    waiting = ticket(rematch=lambda chain: found)
    fresh = waiting.refresh(7.0)
    assert fresh is waiting.request
    assert (fresh.match, fresh.now, fresh.work_class) == (found, 7.0, PREFILL)


def test_the_policy_is_told_in_whose_line_it_waits() -> None:
    waiting = ticket()
    assert waiting.refresh(1.0).line is None
    Line(BackendLoad("a")).push(waiting, Scheduling())
    assert waiting.refresh(2.0).line == "a"
    assert waiting.line is not None
    waiting.line.remove(waiting)
    Line(None).push(waiting, Scheduling())
    assert waiting.refresh(3.0).line is None, "of those that wait for any"


def test_who_is_placed_anew_waits_in_no_line() -> None:
    """The backend in whose line it waited before may be gone."""
    before = msgspec.structs.replace(ask(PREFILL), line="gone", urgent=True)
    waiting = Ticket(before, print, print)
    waiting.arrive(1, 100.0, 5.0)
    assert (waiting.request.line, waiting.request.urgent) == (None, False)


def test_every_reason_has_a_status() -> None:
    statuses = {reason: Refusal(reason, 1.0).status for reason in RefusalReason}
    assert statuses == {
        RefusalReason.QUEUE_FULL: 429,
        RefusalReason.EXPIRED: 503,
        RefusalReason.OVERLOAD: 429,
        RefusalReason.DISPLACED: 429,
        RefusalReason.NO_BACKEND: 503,
        RefusalReason.SHUTTING_DOWN: 503,
        RefusalReason.ROUTING_FAILED: 500,
    }


def test_a_refusal_becomes_an_error() -> None:
    error = Refusal(RefusalReason.EXPIRED, 3.0).error()
    assert isinstance(error, Refused)
    assert (error.reason, error.status, error.retry_after) == (RefusalReason.EXPIRED, 503, 3.0)


def test_where_it_may_go() -> None:
    assert [ticket().allows(id) for id in "ab"] == [True, True]
    assert [ticket(avoid=("a",)).allows(id) for id in "ab"] == [False, True]
    assert [ticket(only="a").allows(id) for id in "ab"] == [True, False]
    assert not ticket(only="a", avoid=("a",)).allows("a")
