"""Names of the library in a lesson's prose: which are known, and that the first use of each is a link."""

from __future__ import annotations

from docutils import nodes

from course_tools.site import names

CELLS = {
    "cells": [
        {"cell_type": "markdown", "source": "from course_lib import nothing"},
        {"cell_type": "code", "source": ["%%time\n", "from course_lib import lost"]},
        {
            "cell_type": "code",
            "source": ["from course_kit import ranks\n", "from course_lib.parallel import zero as z"],
        },
        {"cell_type": "code", "source": "import torch"},
    ]
}
PLACES = {f"course_kit.{name}": f"../api/{name}" for name in ("ranks", "units", "units.Bytes")}


def test_a_name_is_read_as_the_page_imports_it() -> None:
    imports = names.imported(CELLS)
    assert imports == {"ranks": "course_kit.ranks", "z": "course_lib.parallel.zero"}
    said = {
        "z.Zero2": "course_lib.parallel.zero.Zero2",
        "ranks.run(f, 4)": "course_kit.ranks.run",
        "parallel/zero.py": "course_lib.parallel.zero",
        "course_kit/ranks/": "course_kit.ranks",
        "course_kit.units": "course_kit.units",
        "predict.peak": "course_lib.predict.peak",
        "units": "",
        "x + y": "",
    }
    assert {text: names.whole_name(text, imports) for text in said} == said


def test_the_first_use_of_a_name_is_a_link_and_one_that_the_reference_lacks_is_none() -> None:
    words = ["units.Bytes", "units.gone", "torch.no_grad()", "units.Bytes(3)", "ranks.run", "course_kit/units.py"]
    page = nodes.paragraph("", "", *(nodes.literal("", word) for word in words))
    assert names.link_first_uses(page, names.imported(CELLS), PLACES) == 3
    found = [(link.astext(), link["refuri"]) for link in page.findall(nodes.reference)]
    assert found == [
        ("units.Bytes", "../api/units.Bytes"),
        ("ranks.run", "../api/ranks"),
        ("course_kit/units.py", "../api/units"),
    ]
    title = nodes.title("", "", nodes.literal("", "units.Bytes"))
    assert names.link_first_uses(title, {}, PLACES) == 0
