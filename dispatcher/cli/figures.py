"""Numbers as people read them."""


def count(number: float) -> str:
    """1234567 -> `1,234,567`."""
    return f"{number:,.0f}"


def rate(number: float) -> str:
    """Three significant digits: `0.42`, `7.3`, `812`, `1,234`."""
    if number >= 100:  # noqa: PLR2004  # from here on, decimals are noise
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"  # noqa: PLR2004  # as above


def duration(seconds: float | None) -> str:
    """Seconds as `1d 02h 03m`, `2h 03m`, `3m 04s` or `5s`; `-` for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02d}h {minutes:02d}m"
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


def share(part: float, whole: float) -> str:
    """A percentage that says 100 % only when it is."""
    if whole <= 0:
        return "-"
    percent = 100.0 * part / whole
    return "100 %" if part >= whole else f"{min(percent, 99.9):.1f} %"
