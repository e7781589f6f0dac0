import os
from pathlib import Path

import pytest

from loadtests import real_engines
from loadtests.real_engines.__main__ import main

SCRIPTS = Path(real_engines.__file__).parent


@pytest.mark.parametrize("argv", [[], ["DIR", "--engine", "http://127.0.0.1:1"]])
def test_either_a_folder_or_engines(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(argv)
    assert "--engine" in capsys.readouterr().err


def test_a_folder_without_engines_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "run loadtests/real_engines/setup" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["setup", "engine"])
def test_the_scripts_can_be_run(name: str) -> None:
    assert os.access(SCRIPTS / name, os.X_OK)
