"""A bench: controls over a run on ranks or of a simulator, and a picture of the last tries."""

from __future__ import annotations

import html
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.pace import patience
from labkit.ranks.cells import shell
from labkit.ranks.interrupts import forget_interrupt, interrupt_thread
from labkit.study import pictures
from labkit.study.controls import choices, make_controls, offer, settled, values_of
from labkit.study.pictures import Fold

__all__ = ["Bench", "Fold", "Try"]

PRE = "color:#b00020;background:#fff4f4;white-space:pre-wrap;line-height:1.3;margin:0"
_of_cell: dict[str, tuple[int, list[Bench]]] = {}  # those of its last execution
PREDICT = "choose what you expect: then the button works"


@dataclass(frozen=True)
class Try:
    """One run of a bench, as its `draw` gets it.

    Attributes:
        values: The values of the controls, by name.
        result: What `run` returned.
        seconds: How long it ran.
        guess: The reader's prediction; None where there was none.

    >>> Try({"hidden_calls": 3, "size": 64}, None, 0.5).name
    'hidden calls: 3, size: 64'
    """

    values: Mapping[str, Any]
    result: Any
    seconds: float
    guess: Any = None

    @property
    def name(self) -> str:
        """The values in words."""
        return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in self.values.items())


class Bench:
    """Controls whose values a reader changes, and a picture that compares the last tries.

    The first try, with the first value of each control, runs in the cell. A later one runs in a thread of its own, can
    be stopped, and shows an error below the button; the tries before stay.

    Args:
        run: Takes the values of the controls by name, and computes. It should print nothing.
        draw: Takes the last tries, the newest last, and returns a figure, HTML text or an object with `_repr_html_`.
        go: The text of the button that starts a run.
        predict: The question that comes before a run, its options, and a function that finds the right option in a
            result. The button works once an option is chosen.
        keep: How many tries are drawn; one with the same values takes the place of the earlier one.
        controls: By the name of an argument of `run`: a list of values (buttons, or a drop-down list), `(low, high)` or
            `(low, high, step)` of numbers (a slider), True or False (a check box), or a text (a field).

    Attributes:
        tries: The last tries.
        error: The exception of the last try; None if it had none. `raise bench.error` shows all of it.

    Raises:
        ValueError: A control, `predict` or `keep` is not as described, or `run` does not take exactly these names.
        TypeError: `run` or `draw` cannot be called.
        ImportError: ipywidgets is not installed.

    >>> def run(size, twice):
    ...     return size * (1 + twice)
    >>> def draw(tries):
    ...     return " ".join(f"<b>{one.result}</b>" for one in tries)
    >>> bench = Bench(run, draw, go="Run", size=[1, 2, 4], twice=False)
    >>> bench
    a bench (size, twice): run its cell in JupyterLab
    >>> bench.tries[-1].name, bench.tries[-1].result
    ('size: 1, twice: False', 1)
    """

    def __init__(
        self,
        run: Callable[..., Any],
        draw: Callable[[Sequence[Try]], Any],
        /,
        *,
        go: str,
        predict: tuple[str, Sequence[Any], Callable[[Any], Any]] | None = None,
        keep: int = 3,
        **controls: Any,
    ) -> None:
        import ipywidgets as w

        for name, given in (("run", run), ("draw", draw)):
            if not callable(given):
                raise TypeError(f"{name} must be a function, got {given!r}")
        if not isinstance(go, str) or not go:
            raise ValueError(f"go is the text of the button, got {go!r}: a control needs another name")
        if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
            raise ValueError(f"keep must be a whole number above 0, got {keep!r}")
        question, options, self._right = _prediction(predict)
        self.controls = make_controls(w, run, controls)
        self._run, self._draw, self._keep, self._question = run, draw, keep, question
        self.tries: list[Try] = []
        self.error: BaseException | None = None
        self._seconds: dict[str, float] = {}  # the last run with these values: the first one compiles
        self._lock = threading.RLock()
        self._worker: threading.Thread | None = None
        self._stoppable = self._begun = self._stop_wanted = self._closed = False

        self._said, self._picture = w.HTML(), w.HTML()
        self._picture.layout.width = "auto"
        self._guess = w.ToggleButtons(options=options, value=None)
        self._guess.style.button_width = "auto"
        self._go = w.Button(description=go, button_style="primary", layout={"width": "auto"})
        self._stop = w.Button(description="Stop", icon="stop", layout={"width": "auto"})
        wraps = {"flex_flow": "row wrap", "align_items": "center"}
        rows = [w.HBox([*self.controls.values()], layout={**wraps, "align_items": "flex-end"})]
        if question:
            rows.append(w.HBox([w.HTML(f"<b>{html.escape(question)}</b>&ensp;"), self._guess], layout=wraps))
        rows.append(w.HBox([self._go, self._stop, self._said], layout={**wraps, "align_items": "flex-start"}))
        self.widget = pictures.live(w, [*rows, self._picture])

        _replace_in_cell(self)
        self._try(self._values())
        self._twin = self._saved()
        self._go.on_click(lambda _: self._start())
        self._stop.on_click(lambda _: self.stop())
        for one in self.controls.values():
            one.observe(lambda _: self._changed(), "value")
        self._guess.observe(lambda _: self._ready(), "value")
        self._ready()

    def every(self, name: str, values: Sequence[Any] | None = None, say: str = "All answers") -> Fold:
        """Run and draw all values of one control, the others as they stand, for the saved lesson.

        Args:
            name: The control.
            values: Its values; None for all of a list or check box.
            say: The line above the folded picture.

        Raises:
            ValueError: There is no such control, or it has no such value.

        >>> Bench(lambda size: size * 2, lambda tries: f"{tries[-1].result}", go="Run", size=[1, 2]).every("size")
        All answers (folded)
        """
        if name not in self.controls:
            raise ValueError(f"no control {name!r} here: there is {', '.join(self.controls)}")
        tries = []
        values = values_of(self.controls[name], name, values)
        for value in values:
            given = self._values() | {name: value}
            began = time.perf_counter()
            tries.append(Try(given, self._run(**given), time.perf_counter() - began))
        return Fold(say, pictures.saved(pictures.as_html(self._draw(tries), say)))

    def stop(self) -> None:
        """Stop the run that goes on, if any: a call on ranks at once, other Python code at its next line."""
        with self._lock:
            if self._stoppable and self._worker is not None:
                self._stop_wanted = True
                self._said.value = "stopping: the tries before stay"
                if self._begun:
                    interrupt_thread(self._worker)

    def close(self) -> None:
        """Stop the run that goes on, and close the widgets."""
        with self._lock:
            self._closed, worker = True, self._worker
        if worker is not None:
            self.stop()
            worker.join(patience(10))
        self.widget.close()

    # -- a run -----------------------------------------------------------------------------------------------

    def _try(self, values: dict[str, Any]) -> None:
        """Run with these values and draw; raises what `run` or `draw` raised, and keeps the tries then."""
        began = time.perf_counter()
        result = self._run(**values)
        seconds = time.perf_counter() - began
        one = Try(values, result, seconds, self._guess.value)
        tries = [*(old for old in self.tries if old.values != values), one][-self._keep :]
        page, said = pictures.as_html(self._draw(tries), one.name), self._verdict(one)
        self.tries, self._picture.value, self._said.value, self.error = tries, page, said, None
        self._seconds[repr(values)] = seconds

    def _start(self) -> None:
        """Start a run in a thread; a click that comes while one goes on, or before a prediction, is dropped."""
        with self._lock:
            if self._worker is not None or self._closed or self._go.disabled:
                return
            self._stoppable, self._begun, self._stop_wanted = True, False, False
            self._worker = threading.Thread(target=self._work, args=[self._values()], daemon=True)
            self._ready()
            seconds = self._seconds.get(repr(self._values()))
            about = "the first run with these values" if seconds is None else f"about {max(seconds, 1):.0f} s"
            self._said.value = f"<progress></progress>&ensp;{about}"
            self._worker.start()

    def _work(self, values: dict[str, Any]) -> None:
        try:
            self._try_until_stopped(values)
        except KeyboardInterrupt as stop:
            self.error = stop
            self._said.value = "stopped; the tries before stay" + _details(stop, "where it stood")
        except BaseException as error:  # in this thread nobody else would show it
            self.error = error
            text = f'<pre style="{PRE}">{html.escape(_text(error))}</pre>'
            self._said.value = text + _details(error, "the whole traceback")
        finally:
            with self._lock:
                self._worker, self._stoppable = None, False
                self._ready()

    def _try_until_stopped(self, values: dict[str, Any]) -> None:
        try:
            with self._lock:
                self._begun = True
                if self._stop_wanted:
                    raise KeyboardInterrupt
            self._try(values)
        finally:
            with self._lock:  # from here on a stop comes too late
                self._stoppable = False
                forget_interrupt()

    def _changed(self) -> None:
        self._guess.value = None
        self._ready()

    def _ready(self) -> None:
        """Enable what works now."""
        busy = self._worker is not None
        asked = bool(self._question) and self._guess.value is None
        for one in (*self.controls.values(), self._guess):
            one.disabled = busy
        self._stop.disabled = not busy
        self._go.disabled = busy or asked
        if asked and not busy:
            self._said.value = PREDICT
        elif self._said.value == PREDICT:
            self._said.value = ""

    def _values(self) -> dict[str, Any]:
        return {name: settled(one.value) for name, one in self.controls.items()}

    def _verdict(self, one: Try) -> str:
        right = None if self._right is None else self._right(one.result)
        if self._right is not None and right not in self._guess.options:
            raise ValueError(f"predict {self._question!r}: {right!r} is none of its options")
        if one.guess is None:
            return f"{one.seconds:.1f} s"
        head = "yes" if right == one.guess else "no"
        return f"<b>{head}</b>: you said {html.escape(str(one.guess))}, it was {html.escape(str(right))}"

    # -- how it is shown -------------------------------------------------------------------------------------

    def _saved(self) -> str:
        """The first picture, and what there is to change: for where the controls do not work."""
        offers = "; ".join(offer(one) for one in self.controls.values())
        asks = f" {html.escape(self._question)}" if self._question else ""
        say = f"<b>{pictures.RUN}</b> in JupyterLab to change: {html.escape(offers)}.{asks}"
        return f"<p>{say}</p>{self._picture.value}"

    def _ipython_display_(self) -> None:
        pictures.show(self.widget, self._twin, repr(self))

    def __repr__(self) -> str:
        names = ", ".join(name.replace("_", " ") for name in self.controls)
        return f"a bench ({names}): run its cell in JupyterLab"


def _prediction(predict: Any) -> tuple[str, list[Any], Callable[[Any], Any] | None]:
    if predict is None:
        return "", [], None
    if not isinstance(predict, tuple) or len(predict) != 3:
        raise ValueError(f"predict is (question, options, right), got {predict!r}")
    question, options, right = predict
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"predict needs a question, got {question!r}")
    if not callable(right):
        raise ValueError(f"predict {question!r}: right must be a function of a result, got {right!r}")
    return question, choices(f"predict {question!r}", options), right


def _text(error: BaseException) -> str:
    """An error as a cell would end with it: labkit's own has its lines already."""
    said = str(error) if hasattr(error, "_render_traceback_") else f"{type(error).__name__}: {error}"
    return "\n".join([said.rstrip(": "), *getattr(error, "__notes__", ())])


def _details(error: BaseException, say: str) -> str:
    text = html.escape("".join(traceback.format_exception(error)))
    return pictures.fold(say, f'<pre style="line-height:1.3">{text}</pre>')


def _replace_in_cell(bench: Bench) -> None:
    """Close what the same cell made when it was run before: its Stop button is gone from the screen."""
    ipython = shell()
    header = getattr(ipython, "parent_header", None) or {}
    cell = header.get("metadata", {}).get("cellId", "") if isinstance(header, dict) else ""
    if cell:
        count, before = _of_cell.get(cell, (0, []))
        if count != ipython.execution_count:
            for one in before:
                one.close()
            before = []
        _of_cell[cell] = ipython.execution_count, [*before, bench]
