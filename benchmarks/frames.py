"""The explorer in a real browser: how long a frame of 300 tokens takes, without waiting for the
screen, in CPU time of the thread that draws. 60 frames a second leave 16.7 ms.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from attnscope.report import explorer

TOKENS, FRAMES = 300, 180
SETTINGS = [
    (variant, space, causal)
    for variant in ("softmax", "l2", "sinkhorn", "sigmoid")
    for space in ("plane", "sphere")
    for causal in ((False, True) if variant != "sinkhorn" else (False,))
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

SCRIPT = """([variant, space, causal, tokens, frames]) => {
  const { app } = explorer["main.js"];
  app.begin("sphere");
  app.tokens.travel(space);
  app.change((state) => {
    state.variant = variant;
    state.causal = causal;
    for (const head of state.heads) for (const m of Object.values(head)) m.forEach((v, k) => {
      m[k] = Math.max(-1, Math.min(1, v));
    });
  });
  document.getElementById("count").value = tokens;
  app.tokens.redraw();
  app.session.running = true;
  const waiting = globalThis.requestAnimationFrame;
  globalThis.requestAnimationFrame = () => 0;  // frames come as fast as they can
  for (let k = 0; k < frames; k++) app.frame(1000 * k / 60);
  globalThis.requestAnimationFrame = waiting;
  app.session.running = false;
}"""


def main() -> dict[str, Any]:
    """Milliseconds of a frame: computing and drawing, the measurement of the constant included."""
    from playwright.sync_api import sync_playwright

    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        sys.exit("no browser: install Chromium to measure frames.")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder, "explorer.html")
        file.write_text(explorer.page())
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(file.as_uri())
        clock = page.context.new_cdp_session(page)
        clock.send("Performance.enable", {"timeDomain": "threadTicks"})

        def busy() -> float:
            told = clock.send("Performance.getMetrics")["metrics"]
            return next(one["value"] for one in told if one["name"] == "TaskDuration")

        for variant, space, causal in SETTINGS:
            before = busy()
            page.evaluate(SCRIPT, [variant, space, causal, TOKENS, FRAMES])
            name = f"{'causal ' if causal else ''}{variant}, {space}, {TOKENS} tokens"
            found[f"mean frame of the explorer in ms, {name}"] = {
                "value": 1000 * (busy() - before) / FRAMES,
                "at most": 1000 / 60,
            }
        browser.close()
    return found
