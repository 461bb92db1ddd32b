"""A headless browser: what a page looks like, and what it complains of."""

import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
needs_browser = pytest.mark.skipif(not BROWSER, reason="needs Chromium or Chrome")


def photograph(page, tmp_path, width=1000, height=4000):
    """Open a page; returns uint8[height, width, 3], and the lines of its console."""
    picture = tmp_path / "screen.png"
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",  # Refuses to start as root with it, as in a container.
            "--disable-gpu",
            "--disable-background-networking",
            "--force-device-scale-factor=1",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},{height}",
            f"--screenshot={picture}",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return np.asarray(Image.open(picture).convert("RGB")), console


def find(screen, color, tolerance=12):
    """Rows and columns of the pixels of a colour, (int[N], int[N]); those that are nearly of it count."""
    return np.nonzero((np.abs(screen.astype(int) - color) <= tolerance).all(axis=-1))


def assert_opens(page, tmp_path):
    """That a browser has nothing to complain of, and that curves or bars are drawn in the first of their colours."""
    screen, console = photograph(page, tmp_path)
    assert console == []
    assert len(find(screen, (37, 99, 235))[0]) > 500
