"""`python -m dispatcher`, and the command `dispatcher`."""

from dispatcher.cli.commands import app
from dispatcher.cli.garbage import collect_rarely


def main() -> None:
    """Run the command line."""
    collect_rarely()  # before the parts are imported: that alone makes hundreds of thousands of objects
    app()


if __name__ == "__main__":
    main()
