"""`course plan`: names as people write them, JSON for programs, and errors that say what to do."""

import json

import pytest
from typer.testing import CliRunner

from course_lib.predict.planner import Plans
from course_tools.cli import app
from course_tools.planning import planned

READS = ("course_tools/*/commands.py",)
QUICK = ["plan", "llama3-8b", "--gpus", "16", "--of", "H100"]


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_the_best_plans_the_command_and_the_reasons_are_printed() -> None:
    code, said = run(*QUICK, "--most", "3")
    assert code == 0
    assert "torchrun --nnodes 2 --nproc-per-node 8" in said
    assert "ZeRO" in said and "interleaving needs a pipeline" in said


def test_no_digit_is_lost_where_the_output_is_narrow() -> None:
    said = CliRunner().invoke(app, [*QUICK, "--most", "3"], env={"COLUMNS": "60"}).output
    assert said.count(" GB") >= 6 and "…" not in said


def test_the_map_has_a_number_for_each_mesh_that_fits() -> None:
    code, said = run(*QUICK, "--map")
    assert code == 0 and "tp down, pp across" in said
    seconds = {f"{each.step_s:.3g}" for each in planned("llama3-8b", 16, "H100").map}
    assert len(seconds) > 5 and all(each in said for each in seconds)
    assert "pp across" not in run(*QUICK)[1]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_seconds_of_expert_models_are_said_to_be_untested_beside_the_output(options: list[str]) -> None:
    done = CliRunner().invoke(app, ["plan", "mixtral", "--gpus", "64", *options])
    assert done.exit_code == 0 and "Experts are untested" in done.stderr
    assert "untested" not in done.stdout and "untested" not in run(*QUICK, *options)[1]


def test_json_is_for_programs() -> None:
    code, said = run(*QUICK, "--json")
    assert code == 0
    assert Plans.of(said).best[0].tensor == json.loads(said)["best"][0]["tensor"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["plan", "lama3-8b", "--gpus", "8"], "no model 'lama3-8b': say one of Llama 3 8B"),
        (["plan", "llama3-8b", "--gpus", "8", "--of", "A100"], "more than one GPU 'A100': say one of A100 40GB,"),
        (["plan", "llama3-8b", "--gpus", "8", "--of", "H1000"], "no GPU 'H1000': say one of"),
        (["plan", "llama3-8b", "--gpus", "12"], "gpus=12 do not fill nodes of 8"),
        (["plan", "gpt3-175b", "--gpus", "8"], "the least is"),
        (["plan", "switch-base", "--gpus", "8"], "Switch-Base is an encoder and a decoder"),
        ([*QUICK, "--seq", "0"], "seq=0: it must be an integer, at least 1"),
        ([*QUICK, "--batch", "0"], "batch=0: must be positive"),
        (["plan", "gpt2-xl", "--gpus", "8", "--seq", "4096"], "seq=4096 is longer than the model's context of 1024"),
        ([*QUICK, "--most", "0"], "Invalid value for '--most'"),
        ([*QUICK, "--most", "500"], "Invalid value for '--most'"),
        (["plan", "llama3-8b", "--gpus", "0"], "Invalid value for '--gpus'"),
        (["plan", "llama3-8b", "--gpus", "8", "--like", "abacus"], "no machine 'abacus': say one of"),
    ],
)  # fmt: skip
def test_mistakes_are_answered_with_what_to_do(words: list[str], answer: str) -> None:
    code, said = run(*words)
    assert code == 2
    assert answer in " ".join(said.split())


def test_other_software_makes_other_plans() -> None:
    nanotron, fsdp = planned("Llama 3 70B", 256, "H100 SXM"), planned("llama-3-70b", 256, "h100", like="h100-fsdp")
    fails = {each.best[0].step_s for each in (nanotron, fsdp)}
    assert len(fails) == 2
