import os
from pathlib import Path

import pytest

from loadtests.real_engines import handover
from loadtests.real_engines.handover.__main__ import main

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("argv", "missing"),
    [
        ([], "--prefill and --decode"),
        (["--prefill", URL], "--prefill and --decode"),
        (["DIR", "--prefill", URL, "--decode", URL], "--prefill and --decode"),
        (["--prefill", URL, "--decode", URL, "--connector", "nixl_push"], "--engine-id"),
        (["--prefill", URL, "--decode", URL, "--connector", "sglang"], "nixl_pull"),
    ],
)
def test_what_is_missing_is_told(
    argv: list[str], missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(argv)
    assert missing in capsys.readouterr().err


def test_a_folder_without_engines_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "run loadtests/real_engines/setup" in capsys.readouterr().err


def test_the_script_can_be_run() -> None:
    assert os.access(Path(handover.__file__).with_name("engine"), os.X_OK)


def test_an_engine_that_cannot_be_started_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--prefill", URL, "--decode", URL, "--prefill-command", "/no/such/command"]
    assert main(argv) == 1
    assert "/no/such/command" in capsys.readouterr().err
