"""The course opened elsewhere, as far as it can be tried without the service: image, Binder, VS Code, addresses."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

import start
from course_tools.author import release
from course_tools.author.addresses import addresses

ROOT = Path(__file__).parents[1]
READS = ("Dockerfile", ".dockerignore", ".binder/*", ".devcontainer/*")
DEVCONTAINER = {
    "$schema": str, "name": str, "build": dict, "hostRequirements": dict, "remoteUser": str, "postCreateCommand": str,
    "forwardPorts": list, "portsAttributes": dict, "customizations": dict,
}  # fmt: skip
"""The part that we use of the schema of devcontainers/spec, with its types."""


def dockerfile() -> list[str]:
    """The Dockerfile's instructions, one for each element, without comments."""
    lines = [line for line in (ROOT / "Dockerfile").read_text("utf-8").splitlines() if line and line[0] != "#"]
    return re.sub(r"\s*\\\n\s*", " ", "\n".join(lines)).splitlines()


def pips(text: str) -> list[str]:
    return re.findall(r"pip install [^&\n;]+", text)


def test_the_image_is_pinned_and_nobody_in_it_is_root() -> None:
    steps = dockerfile()
    assert re.fullmatch(r"FROM \S+:[\w.-]+@sha256:[0-9a-f]{64}", steps[0])
    users = [step.split()[1] for step in steps if step.startswith("USER ")]
    assert users == ["student"] and f"useradd --create-home --uid 1000 --shell /bin/bash {users[0]}" in steps[1]
    assert all("--chown=student:student" in step for step in steps if step.startswith("COPY "))


@pytest.mark.parametrize("file", ["Dockerfile", ".binder/postBuild", ".devcontainer/devcontainer.json"])
def test_what_is_installed_elsewhere_is_what_start_py_installs(file: str) -> None:
    commands = pips((ROOT / file).read_text("utf-8"))
    assert commands
    for command in commands:
        assert "-c constraints.txt" in command or "jupyterhub" in command, command
        if "torch==" in command:
            assert f"{start.TORCH}+cpu" in command and f"--extra-index-url {start.CPU_WHEELS}" in command
    extras = {name for command in commands for name in re.findall(r"-e '?\.\[(\w+)\]", command)}
    assert all(f"\n{name} = [" in (ROOT / "pyproject.toml").read_text("utf-8") for name in extras)


def test_an_image_holds_nothing_that_students_must_not_see() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if not line.startswith("#")]
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    docker = {name for name in release.FILES if name.startswith((".", "Docker"))}
    assert rules[0] == "*" and kept == {*release.FILES, *release.FOLDERS, "labs"} - docker
    after = rules[max(rules.index(f"!{name}") for name in kept) + 1 :]
    assert {path.as_posix() for path in release.NOT_FOR_STUDENTS} <= set(after)


def test_binder_and_vs_code_find_what_they_need() -> None:
    subprocess.run(["bash", "-n", ROOT / ".binder" / "postBuild"], check=True)
    assert re.fullmatch(r"python-3\.1[1-3]\n", (ROOT / ".binder" / "runtime.txt").read_text("utf-8"))
    settings = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text("utf-8"))
    assert {name: type(value) for name, value in settings.items()} == DEVCONTAINER
    assert (ROOT / ".devcontainer" / settings["build"]["dockerfile"]).samefile(ROOT / "Dockerfile")
    assert f"USER {settings['remoteUser']}" in dockerfile()
    assert settings["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"].startswith("/opt/venv/")


def test_an_address_opens_the_notebook_of_the_repository() -> None:
    lab = "labs/lab06_collectives/lab06_collectives.ipynb"
    found = addresses(lab, "https://github.com/a/b.git", hub="https://hub.example.edu:8000/")
    assert found["Colab"] == f"https://colab.research.google.com/github/a/b/blob/main/{lab}"
    assert found["Binder"].startswith("https://mybinder.org/v2/gh/a/b/main?urlpath=lab%2Ftree%2Flabs%2F")
    assert parse_qs(urlsplit(found["Binder"]).query) == {"urlpath": [f"lab/tree/{lab}"]}
    asked = urlsplit(found["JupyterHub"])
    assert (asked.netloc, asked.path) == ("hub.example.edu:8000", "/hub/user-redirect/git-pull")
    assert parse_qs(asked.query) == {
        "repo": ["https://github.com/a/b"], "branch": ["main"], "urlpath": [f"lab/tree/b/{lab}?autodecode"]
    }  # fmt: skip
    assert set(addresses(lab, "https://git.example.edu/a/b", hub="https://hub.example.edu")) == {"JupyterHub"}
    with pytest.raises(ValueError, match="the hub is 'hub.example.edu'; it should look like https://host/path"):
        addresses(lab, "https://github.com/a/b", hub="hub.example.edu")
