"""The HTML page: what is on it, and that a browser without a network shows it in light and in dark."""

import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from repogen.load.metrics import result
from repogen.load.observe import Batching, Observation
from repogen.report import as_html
from repogen.triton import BatchStatistics, Statistics
from tests.load.made import samples_of

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
BATCHES = (BatchStatistics(1, 300, 0, 0, 0), BatchStatistics(4, 900, 0, 0, 0))


def run(scale, model="<ocr> & co"):
    rng = np.random.default_rng(1)
    latencies = (rng.lognormal(1, 0.5, 20_000) * scale * 1e6).astype(np.int64)
    spent = Statistics(model, 20_000, 0, 20_000, 6000, 10**9, 10**8, 10**9, 10**8, BATCHES)
    part = samples_of(latencies, spacing=500_000, model=model, arrivals="poisson", rate=2000.0 / scale, run=str(scale))
    part = replace(part, server=Observation(spent, Batching(8, dynamic=True)).to_json())
    return result([part]), [part]


@pytest.fixture(scope="module")
def page():
    return as_html([run(1), run(2)])


def test_it_needs_nothing_from_elsewhere(page):
    assert not re.search(r"(src|href|@import|url\()", page)
    assert "<script" not in page
    assert "<ocr>" not in page
    assert "&lt;ocr&gt; &amp; co" in page
    assert "nan" not in page


def test_every_tag_is_closed(page):
    open_tags = []

    class Check(HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag not in ("meta", "path", "circle", "rect"):
                open_tags.append(tag)

        def handle_endtag(self, tag):
            if tag not in ("path", "circle", "rect"):
                assert open_tags.pop() == tag

    Check().feed(page)
    assert open_tags == []


def test_what_is_on_it(page):
    names = re.findall(r'aria-label="([^"]+)"', page)
    each = ["Latency over time", "Distribution of latency", "Batch sizes", "Queue and compute"]
    assert names == ["Latency against rate", *each, *each]
    assert "P99.99" in page
    assert "Valid" in page or "Void" in page
    assert "Conditions" in page


def test_one_run_has_no_curve_over_rates():
    assert "Latency against rate" not in as_html([run(1)])


def test_the_steps_of_a_pipeline():
    _, [part] = run(1)
    spent = Statistics("x", 20_000, 0, 20_000, 9000, 10**9, 10**8, 2 * 10**9, 10**8, BATCHES, 10**10)
    told = Observation(spent, Batching(8, dynamic=True), members={"<first>": spent, "second": spent})
    part = replace(part, server=told.to_json())
    page = as_html([(result([part]), [part])])
    assert "Batch sizes" not in page  # an ensemble merges nothing
    assert 'aria-label="Steps of the pipeline"' in page
    assert "<td>&lt;first&gt;</td>" in page
    assert page.count("<td>second</td>") == 1


def pixels(png):
    """Return width, height and the mean brightness of a screenshot (8-bit RGB or RGBA)."""
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert depth == 8
    place, data = 8, b""
    while place < len(png):
        size, name = struct.unpack(">I4s", png[place : place + 8])
        data += png[place + 8 : place + 8 + size] if name == b"IDAT" else b""
        place += size + 12
    bands = {2: 3, 6: 4}[kind]
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * bands)
    first = rows[:, 1 : 1 + bands][rows[:, 0] <= 1]  # the leftmost pixel, where it is no difference to the row above
    return width, height, float(first[:, :3].mean())


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (apt-get install chromium)")
@pytest.mark.parametrize(("dark", "brightness"), [(False, 247), (True, 22)], ids=["light", "dark"])
def test_a_browser_shows_it(page, tmp_path, dark, brightness):
    (tmp_path / "r.html").write_text(page)
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,1400", *scheme,
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path}/profile",
         f"--screenshot={tmp_path}/r.png", f"file://{tmp_path}/r.html"],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    width, height, background = pixels((tmp_path / "r.png").read_bytes())
    assert (width, height) == (1200, 1400)
    assert background == pytest.approx(brightness, abs=3)
    assert len((tmp_path / "r.png").read_bytes()) > 50_000  # something is drawn
