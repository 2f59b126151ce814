"""`course`, or `python -m course_tools`: the command that opens, runs, builds and checks the lessons."""

import sys


def main() -> None:
    """Run the command, or name the missing package: without the course's extras there is no JupyterLab, say."""
    try:
        from course_tools.cli import app

        app()
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("course_"):
            raise
        sys.exit(f"this command needs {missing.name}: pip install 'bigger-than-one-gpu[{extra(missing.name)}]'")


def extra(module: str | None) -> str:
    """The extra of pyproject.toml that brings a missing module; building and grading need more than opening."""
    return "jupyter" if module in {"jupyterlab", "nbclient", "nbformat"} else "instructor"


if __name__ == "__main__":
    main()
