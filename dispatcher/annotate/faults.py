"""What is wrong with a table, told with its file, row and column."""

from dispatcher.errors import Fault, InputError

FAULTS_LISTED = 20


class RowError(Exception):
    """A row that cannot be asked about, and why."""

    def __init__(self, message: str, column: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.column = column


def place(file: str, row: int | None = None, column: str | None = None) -> str:
    """How a spot in a table is called: `reviews.csv, row 3, column stars`."""
    parts = [file]
    if row is not None:
        parts.append(f"row {row}")
    if column is not None:
        parts.append(f"column {column}")
    return ", ".join(parts)


def table_error(file: str, message: str, row: int | None = None, column: str | None = None) -> InputError:
    """The error of a table that cannot be read any further."""
    return InputError(f"{place(file, row, column)}: {message}")


class Faults:
    """The first faults of a table's rows, and how many there are."""

    def __init__(self) -> None:
        self.count = 0
        self._listed: list[Fault] = []

    def add(self, file: str, row: int, error: RowError) -> None:
        """Keep a row's fault."""
        self.count += 1
        if len(self._listed) < FAULTS_LISTED:
            self._listed.append(Fault(place(file, row, error.column), error.message, row))

    def check(self, name: str) -> None:
        """Raises InputError where there are any."""
        if self.count:
            faults = "1 fault" if self.count == 1 else f"{self.count} faults"
            raise InputError(f"{name}: {faults}; nothing was sent", tuple(self._listed), self.count)
