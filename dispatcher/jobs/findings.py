"""What the reading of an input means for its job."""

from dispatcher.errors import InputError
from dispatcher.ingest.findings import ScanReport
from dispatcher.jobs.details import LineError

ERRORS_KEPT = 20
Errors = tuple[LineError, ...]
EMPTY: Errors = (LineError("empty_file", "the input file holds no requests"),)


def errors_of(error: InputError) -> Errors:
    """The first faults by line, and how many more there are."""
    listed = tuple(
        LineError(fault.code or "invalid_line", fault.message, fault.line)
        for fault in error.faults[:ERRORS_KEPT]
    )
    more = error.fault_count - len(listed)
    rest = (LineError("more_errors", f"{more} more lines are not valid"),) if more > 0 else ()
    return listed + rest


def one_model(report: ScanReport) -> str | None:
    """The model that every request names; None where they name several, or none."""
    models = {model for _, model in report.by_model}
    return models.pop() if len(models) == 1 else None
