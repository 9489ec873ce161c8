"""The pictures of the documentation: screenshots of the tests, cut, with at most 256 colours.

CAPSTAN_SCREENSHOTS=FOLDER pytest tests/dags/test_console.py
python -m tests.support.doc_pictures FOLDER docs/images
"""

from __future__ import annotations

import base64
import struct
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.support.browser import browsing, find_browser

if TYPE_CHECKING:
    import numpy.typing as npt
    from playwright.sync_api import Page

    Pixels = npt.NDArray[np.uint8]

CHOSEN = {
    "overview": ("full-1440-light", 0, 900),
    "overview-narrow": ("full-390-light", 0, 844),
    "attention": ("failing-1440-dark", 0, 620),
    "stream": ("full-streams-flights-1440-light", 0, 900),
    "page": ("full-replays-flights_by_day-1440-light", 0, 900),
    "fill": ("full-fill-flights_by_day-2013-11-01-2013-11-08-1440-light", 0, 790),
    "waits": ("full-runs-flights_by_day-5f0c2d1e-1-1440-light", 0, 900),
    "certificate": ("full-runs-march_departures-91edb34e-1-1440-light", 0, 680),
    "failed": ("failing-runs-orders_by_batch-0b0b0b0b-1-1440-light", 0, 900),
}
"""The pictures by name: the screenshot, and from where to where it is shown."""

_COLOURS = 256
# The browser reads its own format.
_DRAW = """async (data) => {
  const file = await fetch(`data:image/png;base64,${data}`);
  const image = await createImageBitmap(await file.blob());
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const bytes = canvas.getImageData(0, 0, image.width, image.height).data;
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) {
    text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  }
  return [image.width, btoa(text)];
}"""


def pixels(page: Page, picture: Path) -> Pixels:
    """The colours of a picture by row and column."""
    data = base64.b64encode(picture.read_bytes()).decode()
    width, drawn = page.evaluate(_DRAW, data)
    return np.frombuffer(base64.b64decode(drawn), np.uint8).reshape(-1, width, 4)[:, :, :3]


def palette_png(colours: Pixels) -> bytes:
    """The picture as PNG: rare colours are shown as the nearest of the 256 most frequent."""
    height, width, _ = colours.shape
    known, places, counts = np.unique(
        colours.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True
    )
    kept = known[np.argsort(-counts)[:_COLOURS]].astype(int)
    distances = ((known[:, None].astype(int) - kept[None]) ** 2).sum(axis=2)
    rows = distances.argmin(axis=1).astype(np.uint8)[places.ravel()].reshape(height, width)
    unfiltered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()
    chunks = {
        b"IHDR": struct.pack(">2I5B", width, height, 8, 3, 0, 0, 0),
        b"PLTE": kept.astype(np.uint8).tobytes(),
        b"IDAT": zlib.compress(unfiltered, 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )


def main(screenshots: Path, images: Path) -> None:
    """Write the chosen pictures."""
    program = find_browser()
    assert program is not None, "there is no Chromium: run tests/install-browser"
    with browsing(program) as browser:
        page = browser.new_page()
        for name, (screenshot, top, bottom) in CHOSEN.items():
            seen = pixels(page, screenshots / f"{screenshot}.png")[top:bottom]
            (images / f"{name}.png").write_bytes(palette_png(seen))
            print(f"{name}.png: {(images / f'{name}.png').stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
