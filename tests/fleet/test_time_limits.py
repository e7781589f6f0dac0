from gateway.config import ModelTimeouts, Timeouts
from gateway.fleet.time_limits import TimeLimits, TimeLimitTable
from gateway.types import WorkClass

PREFILL, DECODE = WorkClass.PREFILL, WorkClass.DECODE


def test_classes_differ_in_the_first_byte() -> None:
    table = TimeLimitTable(Timeouts(first_byte=10.0, prefill_first_byte=60.0, total=300.0))
    assert table.of("m", DECODE) == TimeLimits(5.0, 10.0, 120.0, 300.0)
    assert table.of("m", PREFILL) == TimeLimits(5.0, 60.0, 120.0, 300.0)
    assert TimeLimitTable(Timeouts(first_byte=10.0)).of("m", PREFILL).first_byte == 10.0


def test_models_differ_in_what_is_set_for_them() -> None:
    table = TimeLimitTable(
        Timeouts(
            idle=30.0,
            prefill_first_byte=90.0,
            models={
                "slow": ModelTimeouts(idle=60.0, total=9.0),
                "quick": ModelTimeouts(first_byte=2.0),
                "both": ModelTimeouts(first_byte=2.0, prefill_first_byte=4.0),
            },
        )
    )
    assert table.of("other", DECODE) == TimeLimits(5.0, 600.0, 30.0, None)
    assert table.of("slow", PREFILL) == TimeLimits(5.0, 90.0, 60.0, 9.0)
    assert table.of("quick", DECODE).first_byte == 2.0
    assert table.of("quick", PREFILL).first_byte == 2.0
    assert table.of("both", PREFILL).first_byte == 4.0
