"""What an object store has below a URL, for code that blocks."""

import obstore

from dispatcher.storage.opening import open_store, refusals


def listed(url: str) -> list[str]:
    """The URLs of all objects below a folder's, which ends in a slash, by name.

    Those of which a part of the path below it begins with `.` or `_` are left out, as are empty ones that end
    in a slash: consoles make these to show a folder. Raises StorageError.
    """
    store = open_store(url, retries=True)
    with refusals(url, "cannot be listed"):
        paths = [meta["path"] for page in obstore.list(store) for meta in page]
    return [f"{url}{path}" for path in sorted(paths) if not _hidden(path)]


def _hidden(path: str) -> bool:
    return path.endswith("/") or any(part.startswith((".", "_")) for part in path.split("/"))
