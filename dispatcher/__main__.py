"""`python -m dispatcher`, and the command `dispatcher`."""

from dispatcher.cli.commands import app


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
