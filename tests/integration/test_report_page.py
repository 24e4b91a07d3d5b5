"""In a real browser, the report's page shows every number, without console messages or network requests."""

import html
import json
import re
import shutil
import subprocess

import pytest
from headrace.report.command import main as report
from headrace.report.compare import compare_rows
from headrace.report.runs import read_summary
from matplotlib.image import imread

from tests.unit.test_report import write_run

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-extensions", "--enable-logging=stderr", "--virtual-time-budget=2000",
         "--window-size=900,1400")  # fmt: skip
SHARES = {"alone": 0.51, "helped": 0.03}
pytestmark = pytest.mark.skipif(not BROWSER, reason="no chromium here (Debian: apt-get install chromium)")


@pytest.fixture
def page(tmp_path, capsys):
    runs = [write_run(tmp_path / name, input_bound_share=share, train_s=share * 30) for name, share in SHARES.items()]
    assert report([str(run) for run in runs]) == 0
    capsys.readouterr()
    return runs[1] / "report.html"


def browse(page, *flags):
    """Return the browser's output, its log, and the URLs requested by the page, not by the browser itself."""
    net_log = page.parent / "net.json"
    into = (f"--user-data-dir={page.parent}/browser", f"--log-net-log={net_log}")
    command = [BROWSER, *QUIET, *into, *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    events = [event.get("params", {}) for event in json.loads(net_log.read_text())["events"]]
    asked = {event["url"] for event in events if event.get("initiator", "").startswith(("file:", "null"))}
    return done.stdout, done.stderr, asked


def test_the_page_shows_every_number_and_asks_nobody(page):
    dom, log, asked = browse(page, "--dump-dom")
    shown = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", dom)))
    summaries = [read_summary(page.parent.parent / name) for name in SHARES]
    for name, cells in compare_rows(summaries, []):
        for text in (name, *cells):
            assert re.sub(r"\s+", " ", text) in shown, text
    assert "CONSOLE" not in log, log[-2000:]
    assert asked == set()


def test_a_page_that_did_would_be_noticed(page):
    page.write_text(page.read_text() + '<img src="http://localhost:9/x.png"><script>console.error("no")</script>')
    _, log, asked = browse(page, "--dump-dom")
    assert "CONSOLE" in log and asked == {"http://localhost:9/x.png"}


def test_the_page_follows_the_readers_light_or_dark_setting(page):
    brightness = {}
    for scheme, number in (("dark", 0), ("light", 1)):
        picture = page.parent / f"{scheme}.png"
        browse(page, f"--blink-settings=preferredColorScheme={number}", f"--screenshot={picture}")
        brightness[scheme] = imread(picture)[..., :3].mean()
    assert brightness["dark"] < 0.4 < 0.6 < brightness["light"], brightness
