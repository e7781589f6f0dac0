import io

from loadtests.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(out: io.StringIO) -> str:
    progress = Progress("round_robin", 3, out)
    for _ in range(3):
        progress.step()
    progress.close()
    return out.getvalue()


def test_a_terminal_gets_one_line_with_a_bar_that_fills() -> None:
    text = run(Terminal())
    assert text.count("\n") == 1
    assert text.startswith("\r[")
    assert text.rsplit("\r", 1)[1].startswith(f"[{'#' * 32}] round_robin")


def test_a_pipe_gets_lines_and_the_last_says_all() -> None:
    text = run(io.StringIO())
    assert "\r" not in text
    assert "3/3 requests" in text.splitlines()[-1]
