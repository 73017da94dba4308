"""The page in a real browser: drawn, quiet, fetching nothing, exporting what it shows. Skipped where there is no Chromium."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from humanline.report import write_report


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods × two seeds, with capacity curves and hostile samples."""
    return write_report(runs.all, tmp_path_factory.mktemp("page") / "report.html")


# Keeps what a click on a button would save, instead of saving it.
SAVED = """
const saved = [];
URL.createObjectURL = (blob) => { saved.push(blob); return "data:,"; };
HTMLAnchorElement.prototype.click = function () { this.dataset.clicked = this.download; };
"""


def test_every_figure_is_drawn_and_the_console_stays_empty(page: Path, browse: Callable) -> None:
    seen = browse(
        page,
        """return [...document.querySelectorAll("figure")].map((figure) => ({
             title: figure.querySelector("h3").textContent,
             marks: figure.querySelectorAll(".scatterlayer path, .barlayer path").length,
             axes: [...figure.querySelectorAll(".xtitle, .ytitle")].map((text) => text.textContent),
           }));""",
    )
    assert seen.console == []
    assert len(seen.probe) >= 20 and f'data-drawn="{len(seen.probe)}"' in seen.dom
    for figure in seen.probe:
        assert figure["marks"] > 0, figure
        assert figure["axes"], figure
    axes = {figure["title"]: figure["axes"] for figure in seen.probe}
    assert axes["Reward accuracy, held-out"] == ["optimizer step", "share of pairs"]
    assert axes["Wall-clock"] == ["seconds"]
    assert axes["Capacity curves: plain-0"] == ["objective cumulative mass P(Z ≤ z)", "perceived cumulative mass"]


@pytest.mark.slow
def test_text_of_others_stays_text(page: Path, browse: Callable) -> None:
    """Prompts and completions of the samples hold a script, an image that fails to load, and quotes."""
    seen = browse(
        page,
        """return {title: document.title, images: document.images.length,
                   shown: document.querySelector(".columns pre").textContent, prompt: document.querySelector(".prompt").textContent,
                   second: document.querySelectorAll(".columns pre")[1].textContent};""",
    )
    assert seen.console == []
    assert seen.probe["title"] == "4 runs · humanline report" and seen.probe["images"] == 0
    hostile = "<script>document.title = 'taken over'</script><img src=x onerror=alert(1)> & \"quoted\""
    assert seen.probe["shown"] == hostile
    assert seen.probe["prompt"] == f"user:\nQuestion 0 {hostile}"
    assert seen.probe["second"] == "\n=4", "a leading line break is part of a completion"


@pytest.mark.slow
def test_names_that_look_like_markup_are_only_names(runs, browse: Callable, tmp_path: Path) -> None:
    """Plotly reads some tags in its texts; the title of a method must come through as it is, in figures and in tables."""
    name = "<b>bold</b> & <a href='https://example.org'>link</a>"
    results = {
        "format": "humanline-compare-1",
        "methods": {"a": {"title": name}, "b": {"title": "plain"}},
        "runs": [{"method": method, "seed": seed, "score": seed + 0.5} for method in "ab" for seed in (0, 1)],
    }
    (tmp_path / "results.json").write_text(json.dumps(results))
    seen = browse(
        write_report([tmp_path]),
        """return {labels: [...document.querySelectorAll(".ytick text")].map((text) => text.textContent),
                   links: document.querySelectorAll("main a, svg a").length, cell: document.querySelector("tbody th").textContent};""",
    )
    assert seen.console == [] and seen.probe["links"] == 0 and seen.probe["cell"] == name
    assert seen.probe["labels"][0].replace(" ", "") == name.replace(" ", "")


@pytest.mark.slow
def test_nothing_is_fetched_and_nothing_can_be(page: Path, browse: Callable) -> None:
    """The page's own policy forbids every connection; a figure has no button that would send it away."""
    seen = browse(
        page,
        """const refused = await fetch("https://example.org/").then(() => false, () => true);
           const buttons = [...document.querySelectorAll(".modebar-btn")].map((button) => button.dataset.title || button.ariaLabel);
           const resources = performance.getEntriesByType("resource").map((entry) => entry.name);
           return {refused, resources, buttons: [...new Set(buttons)]};""",
    )
    assert seen.probe["refused"] is True
    assert all("Content Security Policy" in line for line in seen.console) and seen.console
    assert seen.probe["resources"] == []
    assert len(seen.probe["buttons"]) == 6 and not any(
        re.search("share|cloud|edit", title, re.I) for title in seen.probe["buttons"]
    )


@pytest.mark.slow
def test_a_table_is_saved_as_csv_cell_by_cell(page: Path, browse: Callable) -> None:
    seen = browse(
        page,
        SAVED
        + """const table = document.querySelector(".table");
             table.querySelector("[data-save=table]").click();
             const texts = (row) => [...row.cells].map((cell) => cell.textContent);
             return {text: await saved[0].text(), cells: [...table.querySelectorAll("tr")].map(texts)};""",
    )
    assert list(csv.reader(io.StringIO(seen.probe["text"]))) == seen.probe["cells"]
    assert seen.probe["cells"][0][:3] == ["method", "seeds", "held-out reward accuracy"]
    assert any("," in cell for row in seen.probe["cells"] for cell in row), "so that quoting is put to the test"


@pytest.mark.slow
def test_a_figure_is_saved_as_csv_with_the_very_numbers_of_the_run(page: Path, runs, browse: Callable) -> None:
    seen = browse(
        page,
        SAVED
        + """const figures = [...document.querySelectorAll("figure")];
             const named = (title) => figures.find((figure) => figure.querySelector("h3").textContent === title);
             named("Gradient norm").querySelector("[data-save=figure]").click();
             return {text: await saved[0].text(), lr: named("Learning rate").querySelector(".plot").layout.yaxis.range};""",
    )
    assert seen.probe["lr"] == [0, 0.02], "a constant rate of 0.01 is in the middle of its axis, and 0 is 0"
    rows = list(csv.DictReader(io.StringIO(seen.probe["text"])))
    assert set(rows[0]) == {"series", "line", "optimizer step", "L2 norm"}
    for number, run in enumerate(runs.plain):
        written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        shown = [row for row in rows if row["series"] == f"dpo, lr 0.01, seed {number}"]
        assert [int(row["optimizer step"]) for row in shown] == [line["step"] for line in written]
        assert [float(row["L2 norm"]) for row in shown] == pytest.approx([line["grad_norm"] for line in written], rel=1e-5)
    means = [float(row["L2 norm"]) for row in rows if row["series"] == "dpo, lr 0.01, mean"]
    assert len(means) == 12 and {row["line"] for row in rows} == {"seed", "mean"}


@pytest.mark.slow
def test_a_figure_is_saved_as_a_picture(page: Path, browse: Callable) -> None:
    seen = browse(
        page,
        """const plot = document.querySelector(".plot");
           const url = await Plotly.toImage(plot, {format: "png", width: 400, height: 300});
           return {kind: url.slice(0, 22), bytes: url.length, buttons: document.querySelectorAll("[data-save=picture]").length};""",
    )
    assert seen.probe["kind"] == "data:image/png;base64," and seen.probe["bytes"] > 5000
    assert seen.probe["buttons"] == int(re.search(r'data-drawn="(\d+)"', seen.dom)[1])


@pytest.mark.slow
def test_light_and_dark_follow_the_viewer_and_the_button(page: Path, browse: Callable) -> None:
    look = """const shade = () => [getComputedStyle(document.body).backgroundColor, document.querySelector(".plot").layout.paper_bgcolor];
              const before = shade();
              delete document.documentElement.dataset.drawn;
              document.getElementById("theme").click();
              while (!document.documentElement.dataset.drawn) await new Promise((resume) => setTimeout(resume, 50));
              return [before, shade()];"""
    light, dark = ["rgb(255, 255, 255)"] * 2, ["rgb(13, 17, 23)"] * 2
    assert browse(page, look).probe == [light, dark]
    assert browse(page, look, flags=["--force-dark-mode"]).probe == [dark, light]


@pytest.mark.slow
def test_a_phone_needs_no_sideways_scrolling(page: Path, browse: Callable, tmp_path: Path) -> None:
    """In a frame of 390 pixels, since a headless window has a least width: no element but a table's own box is wider."""
    inner = tmp_path / "inner.html"
    report = """<script>addEventListener("load", async () => {
      while (!document.documentElement.dataset.drawn) await new Promise((resume) => setTimeout(resume, 50));
      const wide = [...document.querySelectorAll("main *")].filter((element) => !element.closest(".wide > *, pre > *, svg *")
        && element.getBoundingClientRect().right > innerWidth + 1).map((element) => element.outerHTML.slice(0, 80));
      parent.postMessage({page: document.documentElement.scrollWidth, window: innerWidth, wide}, "*");
    });</script>"""
    inner.write_text(page.read_text(encoding="utf-8") + report, encoding="utf-8")
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<!doctype html><iframe src="{inner.as_uri()}" width="390" height="900"></iframe>'
        "<script>addEventListener('message', (event) => { window.found = event.data; document.documentElement.dataset.drawn = 1; });"
        "</script>",
        encoding="utf-8",
    )
    seen = browse(outer, "return window.found;")
    assert seen.console == []
    assert seen.probe == {"page": 390, "window": 390, "wide": []}
