"""The colours of page.css can be seen on the page and told apart, also with each kind of colour blindness.

Contrast: WCAG 2, at least 3:1 for lines and 4.5:1 for text. Blindness: the matrices of Machado, Oliveira and Fernandes (2009) at
severity 1, in linear RGB; difference: Euclidean in CIELAB, where 2.3 is just noticeable.
"""

from __future__ import annotations

import itertools
import re
from importlib.resources import files

import numpy as np
import pytest

SEEN_BY = {
    "normal": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def palette(theme: str) -> dict[str, str]:
    text = files("humanline.report").joinpath("page.css").read_text()
    return {
        name: (light if theme == "light" else dark)
        for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", text)
    }


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    low, high = sorted(float(linear(colour) @ TO_XYZ[1]) for colour in (first, second))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_black_on_white_is_the_known_contrast() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21) and contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_and_text_stand_out_from_the_page(theme: str) -> None:
    colours = palette(theme)
    series = [colour for name, colour in colours.items() if name.startswith("series-")]
    assert len(series) == 8
    assert min(contrast(colour, colours["page"]) for colour in series) >= 3
    assert (
        min(contrast(colours[name], colours[ground]) for name in ("text", "quiet", "link") for ground in ("page", "raised"))
        >= 4.5
    )
    assert contrast(colours["text"], colours["warn"]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eyes", SEEN_BY)
def test_series_are_told_apart(theme: str, eyes: str) -> None:
    series = [linear(colour) for name, colour in palette(theme).items() if name.startswith("series-")]
    seen = [lab(SEEN_BY[eyes] @ colour) for colour in series]
    assert min(np.linalg.norm(first - second) for first, second in itertools.combinations(seen, 2)) > 12
