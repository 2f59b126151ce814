"""Addresses that open a lesson or a lab elsewhere: Colab, Binder, Codespaces, and a JupyterHub with nbgitpuller.

INSTRUCTORS.md lists the needs of each place.
"""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode

_GITHUB = "https://github.com/"


def addresses(notebook: str, repository: str, *, branch: str = "main", hub: str = "") -> dict[str, str]:
    """The places in which a notebook can be opened → the address to hand out.

    Args:
        notebook: path in the repository, such as `lessons/06_collectives.ipynb`.
        repository: the address of a repository that the place can read. Students' labs: of a release, not of the clone.
        branch: branch of the repository.
        hub: the address of a JupyterHub whose servers have nbgitpuller; without one there is no such row.

    Raises:
        ValueError: the repository or the hub is no https address.
    """
    repository, hub = repository.removesuffix("/").removesuffix(".git"), hub.rstrip("/")
    for name, address in (("repository", repository), ("hub", hub)):
        if address and not re.fullmatch(r"https://[\w.-]+(:\d+)?(/[\w.~-]+)*", address):
            raise ValueError(f"the {name} is {address!r}; it should look like https://host/path")
    found: dict[str, str] = {}
    if repository.startswith(_GITHUB):
        path, lab = repository.removeprefix(_GITHUB), quote(f"lab/tree/{notebook}", safe="")
        found["Colab"] = f"https://colab.research.google.com/github/{path}/blob/{branch}/{notebook}"
        found["Binder"] = f"https://mybinder.org/v2/gh/{path}/{quote(branch, safe='')}?urlpath={lab}"
        found["Codespaces"] = f"https://codespaces.new/{path}/tree/{branch}"
    if hub:
        folder = repository.rpartition("/")[2]  # nbgitpuller clones into a folder of this name
        asked = {"repo": repository, "branch": branch, "urlpath": f"lab/tree/{folder}/{notebook}?autodecode"}
        found["JupyterHub"] = f"{hub}/hub/user-redirect/git-pull?{urlencode(asked)}"
    return found
