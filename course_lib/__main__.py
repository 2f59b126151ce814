"""`course`, or `python -m course_lib`: the command that opens, runs, builds and checks the lessons."""

import sys


def main() -> None:
    """Run the command, or say what it lacks: the lessons need neither Typer nor JupyterLab, the command does."""
    try:
        from course_lib.cli import app
    except ModuleNotFoundError as missing:
        sys.exit(f"the course command needs {missing.name}: pip install 'bigger-than-one-gpu[lab]'")
    app()


if __name__ == "__main__":
    main()
