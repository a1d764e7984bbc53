"""The progress of a run: a live view on a terminal, a log line every ten seconds elsewhere."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TextIO, cast

import structlog
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dispatcher.app.snapshot import Phase, ServerView, Snapshot
from dispatcher.cli.figures import count, duration, rate, share

REFRESH_S = 0.5
LOG_EVERY_S = 10.0
SERVERS_SHOWN_MAX = 30
"""Lines for servers on a terminal; the ones that need a look come first, the rest are counted."""
SERVERS_LOGGED_MAX = 100
"""As many in a log line, which would be 100 KB for a thousand otherwise."""
FAULT_CHARACTERS_MAX = 120
"""Of a fault in a log line: the whole of it stood in the log when it happened."""
STATE_STYLES = {
    "active": "green",
    "suspect": "yellow",
    "evicted": "red",
    "mismatched": "red",
    "draining": "dim",
    "paused": "cyan",
}
PHASES = {
    Phase.STARTING: "starting",
    Phase.READING: "reading the input",
    Phase.RUNNING: "running",
    Phase.DRAINING: "stopping: waiting for what is in flight (again to stop at once)",
    Phase.WRITING: "writing the output",
    Phase.FINISHED: "finished",
}


class RateMeter:
    """Each server's rows a second, from successive snapshots."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, int]] = {}
        self._rates: dict[str, float] = {}

    def update(self, snapshot: Snapshot) -> dict[str, float]:
        """Rows a second by server, smoothed over some seconds."""
        for server in snapshot.servers:
            at, succeeded = self._before.get(server.server, (snapshot.seconds, server.succeeded))
            seconds = snapshot.seconds - at
            if seconds > 0:
                now = (server.succeeded - succeeded) / seconds
                self._rates[server.server] = 0.8 * self._rates.get(server.server, now) + 0.2 * now
            self._before[server.server] = (snapshot.seconds, server.succeeded)
        return self._rates


class _Above:
    """A stream of whole lines that appear above the live view."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> int:
        # In one print: the view is drawn right after it, and must begin on a line of its own.
        self._console.print(Text.from_ansi(text.removesuffix("\n")), soft_wrap=True)
        return len(text)

    def flush(self) -> None:
        self._console.file.flush()

    def isatty(self) -> bool:
        return True


@asynccontextmanager
async def live_view(
    snapshot: Callable[[], Snapshot], console: Console, log_to: Callable[[TextIO], None]
) -> AsyncIterator[None]:
    """Show the run on a terminal until the context ends; the log is printed above it."""
    meter = RateMeter()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        log_to(cast("TextIO", _Above(console)))
        task = asyncio.create_task(_refresh(live, snapshot, meter), name="view")
        try:
            yield
        finally:
            task.cancel()
            log_to(console.file if isinstance(console.file, TextIO) else cast("TextIO", console.file))


async def _refresh(live: Live, snapshot: Callable[[], Snapshot], meter: RateMeter) -> None:
    while True:
        now = snapshot()
        live.update(render(now, meter.update(now)), refresh=True)
        await asyncio.sleep(REFRESH_S)


@asynccontextmanager
async def logged_progress(snapshot: Callable[[], Snapshot]) -> AsyncIterator[None]:
    """Log the run's progress every ten seconds until the context ends."""
    task = asyncio.create_task(_log_progress(snapshot), name="progress log")
    try:
        yield
    finally:
        task.cancel()


async def _log_progress(snapshot: Callable[[], Snapshot]) -> None:
    log = structlog.get_logger("dispatcher.run")
    while True:
        await asyncio.sleep(LOG_EVERY_S)
        now = snapshot()
        log.info(
            "progress",
            **({"step": now.step} if now.step else {}),
            phase=now.phase.value,
            rows=now.rows,
            done=now.done.succeeded,
            failed=now.done.failed,
            in_flight=now.in_flight,
            left=now.left,
            rows_per_s=round(now.rows_per_s, 2),
            tokens_per_s=round(now.tokens_per_s, 1),
            eta_s=None if now.eta_s is None else round(now.eta_s),
            servers=told(now.servers),
            **({"obstacle": now.obstacle} if now.obstacle else {}),
        )


def told(servers: Sequence[ServerView]) -> dict[str, str]:
    """Each server in words: state, in flight of limit, since when, and why or its last fault.

    For the log: without the servers' own words.
    """
    shown, rest = _those_to_look_at(servers, SERVERS_LOGGED_MAX)
    words = {view.server: _in_words(view) for view in shown}
    return words if not rest else {**words, f"and {rest.total()} more": _states(rest)}


def render(snapshot: Snapshot, rates: dict[str, float]) -> RenderableType:
    """The whole live view."""
    parts: list[RenderableType] = [_headline(snapshot)]
    if snapshot.rows:
        done = snapshot.done.succeeded + snapshot.done.failed
        parts += [_bar(done, snapshot.rows), _counts(snapshot), _rates(snapshot)]
    if snapshot.obstacle:
        parts.append(Text(f"cannot record: {snapshot.obstacle}", style="bold red"))
    if snapshot.waiting_for:
        wanted = ", ".join(model or "any model" for model in snapshot.waiting_for)
        parts.append(Text(f"waiting for a server that serves {wanted}", style="bold yellow"))
    if snapshot.servers:
        parts.append(_servers(snapshot, rates))
    parts.append(Text(""))  # the cursor's line: an echoed ^C would wrap a full one, and the view lose count
    return Group(*parts)


def _headline(snapshot: Snapshot) -> Text:
    done = snapshot.done.succeeded + snapshot.done.failed
    step = f"{snapshot.step}: " if snapshot.step else ""
    text = Text(f"{step}{PHASES[snapshot.phase]}", style="bold")
    if snapshot.rows:
        text.append(f"  {share(done, snapshot.rows)} of {count(snapshot.rows)} rows", style="not bold")
    return text


def _bar(done: int, rows: int) -> RenderableType:
    """On a line of its own, which a bare ProgressBar does not end."""
    line = Table.grid()
    line.add_row(ProgressBar(total=rows, completed=done, width=60))
    return line


def _counts(snapshot: Snapshot) -> Text:
    failed = snapshot.done.failed
    text = Text(f"{count(snapshot.done.succeeded)} done, ")
    text.append(f"{count(failed)} failed", style="red" if failed else "")
    text.append(f", {count(snapshot.in_flight)} in flight, {count(snapshot.left)} left")
    return text


def _rates(snapshot: Snapshot) -> Text:
    rates = f"{rate(snapshot.rows_per_s)} rows/s, {rate(snapshot.tokens_per_s)} tokens/s"
    return Text(f"{rates}, ETA {duration(snapshot.eta_s)}")


def _servers(snapshot: Snapshot, rates: dict[str, float]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for title in ("server", "state", "in flight", "rows/s", "rows"):
        right = title in ("in flight", "rows/s", "rows")
        table.add_column(title, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    table.add_column("last fault", ratio=1, no_wrap=True, overflow="ellipsis")  # gets what the others leave
    shown, rest = _those_to_look_at(snapshot.servers, SERVERS_SHOWN_MAX)
    for view in shown:
        table.add_row(*_server_cells(view, rates.get(view.server, 0.0)))
    if rest:
        table.add_row(f"and {rest.total()} more:", _states(rest))
    return table


def _those_to_look_at(servers: Sequence[ServerView], most: int) -> tuple[list[ServerView], Counter[str]]:
    """So many of them by name, those out of rotation before others; and how many more are in which state."""
    in_need = sorted(servers, key=lambda view: (view.state == "active", view.server))
    rest = Counter(view.state for view in in_need[most:])
    return sorted(in_need[:most], key=lambda view: view.server), rest


def _states(rest: Counter[str]) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(rest.items()))


def _in_words(view: ServerView) -> str:
    standing = f"{view.state} {view.in_flight}/{view.limit} for {duration(view.in_state_s)}"
    fault = _fault(replace(view, reason=view.plain_reason, last_fault=view.plain_fault))
    if len(fault) > FAULT_CHARACTERS_MAX:
        fault = f"{fault[:FAULT_CHARACTERS_MAX]}..."
    return f"{standing}: {fault}" if fault else standing


def _server_cells(view: ServerView, rows_per_s: float) -> tuple[RenderableType, ...]:
    state = Text(f"{view.state} {duration(view.in_state_s)}", style=STATE_STYLES.get(view.state, ""))
    return (
        view.server,
        state,
        f"{view.in_flight}/{view.limit}",
        rate(rows_per_s),
        count(view.succeeded),
        Text(_fault(view), style="dim"),
    )


def _fault(view: ServerView) -> str:
    if view.state != "active":
        return view.reason
    if view.serving:
        return view.serving
    if not view.last_fault:
        return ""
    return f"{duration(view.last_fault_ago_s)} ago: {view.last_fault}"
