"""The report: numbers of the board, text that stays text, episodes as they were, no network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.evaluation.board import leaderboard, leaderboard_tables, load_results
from inframind_gym.evaluation.compare import Side, compare
from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.report.data import FORMAT, lean, report_data
from inframind_gym.evaluation.report.page import (
    SECTIONS,
    Chosen,
    choose,
    key_of,
    make_report,
    render,
    replayed,
    write_report,
)
from inframind_gym.evaluation.report.timelines import critical
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.store import HEADER, read_cells, read_header
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.evaluation.tables import to_markdown
from inframind_gym.simulator.workflow.state import CALL

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "routing": (
        "starter",
        {"policies": ("random", "least_loaded"), "rates_per_min": (20, 200), "num_queries": 12},
    ),
    "tracks": (
        "standard_quick",
        {
            "policies": ("bid_price", "fixed_recipe"),
            "seeds": 1,
            "tracks": ("faults",),
            "scenarios": ("faults/deaths",),
            "loads": (0.6,),
            "num_queries": 10,
        },
    ),
    "placement": (
        "placement_quick",
        {"policies": ("random", "greedy"), "clusters": ("h100-4gpu",), "num_decisions": 12},
    ),
    "assignment": ("assignment_quick", {"policies": ("random", "optimum")}),
    "assignment_queue": ("assignment_queue_quick", {"policies": ("random", "least_busy")}),
    "token_budget": ("token_budget_quick", {"policies": ("random", "spend_all")}),
    "coordination": ("coordination_quick", {"policies": ("random", "seed_supervisor")}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small run of every family, made when it is asked for."""
    root, made = tmp_path_factory.mktemp("runs"), {}

    def folder(kind: str) -> Path:
        if kind not in made:
            suite, changes = SMALL[kind]
            run(load_suite(suite, {"seeds": 2, **changes}).resolve(), root / kind)
            made[kind] = root / kind
        return made[kind]

    return folder


class Page(HTMLParser):
    """Elements of a page with their attributes, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] += data

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


SLOW = ("tracks",)  # steady load needs thousands of queries
KINDS = [pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW else kind for kind in SMALL]


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_has_the_board_and_episodes_of_every_family(kind, folders, tmp_path):
    folder, out = folders(kind), tmp_path / "report.html"
    write_report([folder], out, most_episodes=3)
    data = Page(out.read_text(encoding="utf-8")).data
    (found,) = data["runs"]
    board = leaderboard(load_results(folder))
    assert data["format"] == FORMAT
    assert found["board"] == lean(board)
    for shown, sheet in zip(found["tables"], leaderboard_tables(board), strict=True):
        assert shown["rows"] == [list(row) for row in sheet.rows]
        assert shown["caption"] in to_markdown(sheet)
    assert [policy["name"] for policy in found["policies"]] == [
        row["policy"] for row in board["ranking"]
    ]
    assert found["episode_notes"] == []
    drawn = kind in ("routing", "tracks", "placement")
    assert len(found["episodes"]) == drawn * min(3, len(load_results(folder).episodes))
    headings = {found["metrics"][name]["label"] for name in found["metrics"]}
    assert headings <= found["terms"].keys(), "every metric is explained"
    for episode in found["episodes"]:
        check_timeline(episode["timeline"])


def check_timeline(timeline: dict[str, Any]) -> None:
    spans, items = timeline["spans"], timeline["items"]
    count = len(spans["lane"])
    lengths = {len(own) for name, own in spans.items() if name not in ("parts", "labels")}
    assert lengths == {count} == {len(part) for part in spans["parts"]}
    assert min((value for part in spans["parts"] for value in part), default=0.0) >= 0.0
    assert set(spans["lane"]) <= set(range(len(timeline["lanes"])))
    assert max(spans["kind"], default=0) + len(spans["parts"]) <= len(timeline["kinds"])
    assert max(spans["label"], default=-1) < len(spans["labels"])
    (rows,) = {len(own) for own in items.values()}
    assert {name for name, *_ in timeline["columns"]} <= items.keys()
    assert rows == len(set(items["id"]))
    assert all(end >= start for start, end in zip(items["start"], items["end"], strict=True))


def test_pairs_are_those_of_compare(folders):
    results = load_results(folders("routing"))
    data = report_data([results])
    (comparison,) = data["comparisons"]
    names = [side["policy"] for side in comparison["sides"]]
    direct = compare(Side(results, names[1]), Side(results, names[0]))["overall"]
    for metric, rows in comparison["metrics"].items():
        difference, between, verdict = rows[0][1]
        one = results.family.metrics[metric]
        wanted = direct[metric]
        assert difference.lstrip("+") == one.text(wanted["difference"])
        assert between == "[{}, {}]".format(*map(one.text, wanted["difference_ci95"]))
        assert bool(verdict) == (
            wanted["difference_ci95"][0] > 0 or wanted["difference_ci95"][1] < 0
        )


def test_calls_of_a_query_make_its_latency(folders):
    results = load_results(folders("routing"))
    chosen = choose(results, results.policies, (), 2)
    for episode in replayed(results, chosen):
        timeline = episode["timeline"]
        spans, items = timeline["spans"], timeline["items"]
        path_s = dict.fromkeys(items["id"], 0.0)
        for k, query in enumerate(spans["item"]):
            path_s[query] += spans["critical"][k] * sum(part[k] for part in spans["parts"])
        found = [path_s[query] for query in items["id"]]
        assert np.allclose(found, items["latency"], atol=0.02)


def test_the_path_goes_back_from_the_last_call():
    calls = np.zeros(4, CALL)
    calls["query"] = (7, 7, 7, 8)
    calls["submit_s"] = (0.0, 0.0, 5.0, 1.0)
    calls["finish_s"] = (5.0, 3.0, 9.0, 2.0)
    assert critical(calls).tolist() == [1, 0, 1, 1]


def test_worst_and_median_episodes_are_chosen(folders):
    results = load_results(folders("routing"))
    cells = [one for one in read_cells(results.folder) if one is not None]
    key = key_of(cells[-1].cell)
    chosen = choose(results, ("random", "least_loaded"), (key,), 3)
    assert [one.why for one in chosen] == ["asked for", "worst", "worst", "median"]
    assert key_of(chosen[0].finished.cell) == key
    worst = chosen[1].finished
    own = [one.metrics(results.layout)["goodput"] for one in cells if one.cell.policy == "random"]
    assert worst.cell.policy == "random" and chosen[1].score == min(own)
    assert choose(results, results.policies, (), 0) == []


def edited(folder: Path, target: Path, change: Any) -> Path:
    """Copy a folder with a changed header."""
    shutil.copytree(folder, target)
    header = read_header(folder)
    change(header)
    (target / HEADER).write_text(json.dumps(header))
    return target


def test_an_episode_that_is_played_otherwise_is_not_shown(folders, tmp_path):
    def other(header: dict[str, Any]) -> None:
        header["suite"]["split"] = "val"
        header["settings"]["simulator"] = 1

    results = load_results(edited(folders("routing"), tmp_path / "other", other))
    cells = [one for one in read_cells(results.folder) if one is not None]
    (note,) = replayed(results, [Chosen(cells[0], 0.0, "worst")])
    assert isinstance(note, str) and "other records" in note and "simulator version 1" in note
    with pytest.raises(BenchmarkError, match="other records"):
        list(replayed(results, [Chosen(cells[0], 0.0, "asked for")]))


HOSTILE = "</script><script>alert(1)</script><!--\u2028<img src=x onerror=alert(2)>&amp;"


def test_text_stays_text(folders, tmp_path):
    data = report_data([load_results(folders("token_budget"))])
    (found,) = data["runs"]
    found["name"] = found["policies"][0]["name"] = HOSTILE
    found["board"]["notes"] = [HOSTILE]
    text = render(data)
    page = Page(text)
    assert page.data["runs"][0]["board"]["notes"] == [HOSTILE]
    assert len(page.scripts) == 2
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert "innerHTML" not in text and "insertAdjacentHTML" not in text
    assert "document.write" not in text


def test_the_file_refers_to_nothing_outside(folders, tmp_path):
    data = report_data([load_results(folders("routing"))])
    page = Page(render(data))
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "href", "action", "data"} & attributes.keys(), tag
    style = re.search(r"<style>(.*?)</style>", render(data), re.S)
    assert style is not None and not re.search(r"url\(|@import", style[1])
    assert not re.search(r"https?:|//[a-z]|fetch\(|XMLHttp|WebSocket|import\(|\beval\b",
                         re.sub(r"^\s*//.*$", "", page.scripts[1], flags=re.M))  # fmt: skip
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")


def test_a_notebook_shows_some_sections(folders):
    folder = folders("token_budget")
    with pytest.raises(BenchmarkError, match="Did you mean 'board'"):
        make_report([folder], sections=["bord"])
    made = make_report([folder], sections=["board", "frontier"], height_px=300)
    assert Page(made.html).data["runs"][0]["episodes"] == []  # they would not be shown
    ((tag, frame),) = Page(made._repr_html_()).elements
    assert (tag, frame["srcdoc"], frame["sandbox"]) == ("iframe", made.html, "allow-scripts")
    assert "height:300px" in str(frame["style"])


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def drawn(page: Path, profile: Path) -> str:
    """Return a page's elements after its scripts, which must not fail."""
    command = [
        *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
        *(f"--user-data-dir={profile}", "--virtual-time-budget=5000", "--dump-dom"),
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "Uncaught" not in done.stderr and "Content Security Policy" not in done.stderr
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_draws_the_page_without_errors(folders, tmp_path):
    out = tmp_path / "report.html"
    write_report([folders("routing"), folders("placement")], out, most_episodes=1)
    text = drawn(out, tmp_path / "profile")
    tags = Page(text).elements
    assert [one.get("id") for tag, one in tags if tag == "section"] == list(SECTIONS)
    assert [tag for tag, _ in tags].count("canvas") == 1
    assert "Query " in text
