"""A trained memory in a terminal: write symbols, ask, write more, ask again. Reads commands from a pipe as well.

> write abcab
written 5 symbols, 5 in all
> ask cab
yes, confidence 0.981, 1.3 MFLOPs so far
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator

from rich.console import Console

from backbones import OnlineMemory

HELP = """\
write SYMBOLS   fold symbols into the memory: letters (write abcab) or numbers (write 0 1 2 0 1)
ask SYMBOLS     did they occur, one after the other, in what was written?
state           how much was written, and what the memory holds
forget          start again with an empty memory
help, quit"""


def symbols(text: str) -> str | list[int]:
    """`abc` stays letters; `0 1 2` and `0,1,2` are numbers.

    Raises:
        ValueError: neither, or nothing at all.
    """
    parts = text.replace(",", " ").split()
    if not parts:
        raise ValueError("no symbols: give letters, as in abcab, or numbers, as in 0 1 2 0 1")
    if all(part.isdigit() for part in parts):
        return [int(part) for part in parts]
    return "".join(parts)


def obey(memory: OnlineMemory, line: str) -> str | None:
    """Carry out one command; returns what to print, None to quit.

    Raises:
        ValueError: an unknown command or symbols that the memory does not take.
    """
    command, _, rest = line.strip().partition(" ")
    match command.lower():
        case "write":
            before = memory.length
            memory.write(symbols(rest))
            return f"written {memory.length - before} symbols, {memory.length} in all"
        case "ask":
            answer = memory.read(symbols(rest))
            word = "yes" if answer.occurred else "no"
            return f"{word}, confidence {answer.confidence:.3f}, {answer.flops / 1e6:,.1f} MFLOPs so far"
        case "state":
            held = 0 if memory.state is None else memory.state.nbytes
            return f"{memory.length} symbols written, {held:,} bytes of state"
        case "forget":
            memory.reset()
            return "empty"
        case "help":
            return HELP
        case "quit" | "exit":
            return None
    raise ValueError(f"there is no command {command!r}; help lists them")


def typed() -> Iterator[str]:
    """Lines from a terminal, with history and editing where Python has readline."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - importing it gives input() its history
    with contextlib.suppress(EOFError):
        while True:
            yield input("> ")


def session(memory: OnlineMemory, lines: Iterable[str] | None = None) -> int:
    """Obey commands to their end; a terminal goes on after an error, a pipe stops there with 2.

    Args:
        memory: empty.
        lines: commands; None takes standard input.

    Returns:
        The exit code.
    """
    out, err = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False, soft_wrap=True)
    terminal = lines is None and sys.stdin.isatty()
    if terminal:
        letters = memory.letters
        out.print(f"{memory.name}: symbols {letters[0]} to {letters[-1]}, or 0 to {len(letters) - 1}\n{HELP}")
    for line in typed() if terminal else (lines if lines is not None else sys.stdin):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            answer = obey(memory, line)
        except ValueError as error:
            err.print(f"error: {error}", style="red", markup=False)
            if not terminal:
                return 2
            continue
        if answer is None:
            break
        out.print(answer, markup=False)
    return 0
