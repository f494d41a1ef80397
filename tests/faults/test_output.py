"""What ranks print: floods, long lines, progress bars, C-level text, broken characters, warnings, logs, figures."""

from __future__ import annotations

import os
import resource
import sys
import time

import pytest

import labkit


class Sink:
    """Stands for the cell's stream: counts what comes and keeps no more than its end."""

    def __init__(self):
        self.size = self.newlines = 0
        self.end = ""

    def write(self, text):
        self.size += len(text)
        self.newlines += text.count("\n")
        self.end = (self.end + text)[-500:]

    def flush(self):
        pass


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def printed(ranks, capfd, body, *args) -> tuple[str, str]:
    ranks.run(body, *args, ranks=[1])
    return capfd.readouterr()


def test_a_flood_is_passed_on_whole_in_bounded_memory(ranks, monkeypatch):
    lines, width = 1_000_000, 99  # 100 MB from each rank

    def flood(lines, width):
        block = ("x" * width + "\n") * 1000
        for _ in range(lines // 1000):
            sys.stdout.write(block)
        print("end")

    sink = Sink()
    ranks.run(print, "warm")
    before = memory()
    monkeypatch.setattr(sys, "stdout", sink)
    ranks.run(flood, lines, width, ranks=[0])
    monkeypatch.undo()
    assert sink.newlines == lines + 1
    assert sink.size == lines * (width + 1 + len("[rank 0] ")) + len("[rank 0] end\n")
    assert sink.end.endswith("[rank 0] end\n")
    assert memory() - before < 60 << 20


def test_a_closed_stream_is_not_asked_again():
    with labkit.Ranks(1, device="cpu", quiet=True) as ranks:
        ranks.run(lambda: [os.close(fd) for fd in (1, 2)] and None)
        before = time.process_time()
        ranks.run(time.sleep, 1.5)
        assert time.process_time() - before < 0.5


def test_one_line_of_10_mb_comes_in_labelled_pieces(ranks, capfd):
    out, _ = printed(ranks, capfd, lambda: print("y" * (10 << 20) + "z"))
    assert all(line.startswith("[rank 1] ") for line in out.splitlines())
    text = "".join(line.removeprefix("[rank 1] ") for line in out.splitlines())
    assert text == "y" * (10 << 20) + "z"


def test_a_progress_bar_redraws_its_line(ranks, capfd):
    def bar():
        import time

        for i in range(5):
            sys.stderr.write(f"\r{i * 25}%")
            sys.stderr.flush()
            time.sleep(0.02)
        sys.stderr.write("\n")

    _, err = printed(ranks, capfd, bar)
    assert err.count("\r") >= 2 and err.count("\n") == 1
    assert err.replace("\r", "\n").splitlines()[-1] == "[rank 1] 100%"


def test_tqdm(ranks, capfd):
    def bar():
        import time

        from tqdm import tqdm

        for _ in tqdm(range(3), mininterval=0):
            time.sleep(0.02)

    _, err = printed(ranks, capfd, bar)
    assert "[rank 1] 100%" in err and "3/3" in err


def test_rich(ranks, capfd):
    def bar():
        from rich.progress import track

        for _ in track(range(3), description="steps"):
            pass

    out, _ = printed(ranks, capfd, bar)
    assert "[rank 1] steps" in out and "100%" in out
    assert "\x1b" not in out  # it is told that this is no terminal


def test_text_from_c_and_from_a_child_process(ranks, capfd):
    def speak():
        import ctypes
        import os

        ctypes.CDLL(None).puts(b"from C")
        os.write(1, b"from the descriptor\n")
        os.system("echo from a child >&2")

    out, err = printed(ranks, capfd, speak)
    assert "[rank 1] from C\n" in out and "[rank 1] from the descriptor\n" in out
    assert err == "[rank 1] from a child\n"


def test_a_character_cut_in_half_and_bytes_that_are_no_text(ranks, capfd):
    def halves():
        import os
        import time

        for part in (b"caf\xc3", b"\xa9 \xf0\x9f", b"\x98\x80\n", b"bad \xff\xfe byte\n", b"cut \xc3"):
            os.write(1, part)
            time.sleep(0.05)

    out, _ = printed(ranks, capfd, halves)
    assert out.splitlines()[:2] == ["[rank 1] café 😀", "[rank 1] bad \ufffd\ufffd byte"]
    assert out.splitlines()[2] == "[rank 1] cut \ufffd"


def test_warnings_logging_and_tracebacks_go_to_the_error_stream(ranks, capfd):
    def speak():
        import logging
        import traceback
        import warnings

        warnings.warn("careful", UserWarning, stacklevel=1)
        logging.getLogger("mine").warning("logged")
        try:
            raise ValueError("shown")
        except ValueError:
            traceback.print_exc()

    out, err = printed(ranks, capfd, speak)
    assert out == ""
    assert (
        "UserWarning: careful" in err and "[rank 1] logged\n" in err and "[rank 1] ValueError: shown\n" in err
    )


def test_a_figure_made_in_a_rank_comes_back_as_a_picture(ranks):
    def draw():
        import io

        import matplotlib.pyplot as plt

        plt.plot([1, 2])
        plt.show()
        buffer = io.BytesIO()
        plt.savefig(buffer, format="png")
        return plt.get_backend().lower(), buffer.getvalue()[:4]

    assert ranks.run(draw, ranks=[0])[0] == ("agg", b"\x89PNG")


@pytest.mark.kernel
def test_output_is_live_in_the_cell(lesson):
    request = lesson.kernel.start(
        "def slow():\n    print('first')\n    time.sleep(1.5)\nranks.run(slow); print('over')"
    )
    seen = ""
    while "over" not in seen:
        message = lesson.kernel.client.get_iopub_msg(timeout=20)
        if message["parent_header"].get("msg_id") == request and message["msg_type"] == "stream":
            seen += message["content"]["text"]
            if "[rank 0] first" in seen and "[rank 1] first" in seen:
                assert "over" not in seen
                break
    lesson.kernel.finish(request)
