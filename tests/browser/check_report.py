"""Opens pages that `arenic report` makes in a real, headless Chromium, and uses them.

Usage: check_report.py ARENIC [--pictures FOLDER]

Needs Debian's packages chromium and chromium-driver. Timings are printed, and bounded only
where a page would be unusable.
"""

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/digits/digits_step.onnx"
OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1",
]
# Seconds after which nobody would wait for a page, or for a reaction, on a slow machine.
PATIENCE = {"open": 30, "react": 3}
HOSTILE = [
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<!--<script>", "@DATA@", "a\u2028b\u202e\"'&amp;\\u003c", "line\nbreak", "__proto__",
    "long " * 2000,
]

arguments = None


def chromium(width=1280, height=800, dark=False):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    profile = tempfile.mkdtemp()
    for option in [*OPTIONS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    # The window may have a frame: what counts is the page's size.
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    return driver, profile


class Pages(unittest.TestCase):
    """One browser and one folder for all checks."""

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp())
        cls.driver, cls.profile = chromium()
        cls.artifact = cls.folder / "digits.arenic"
        cls.arenic("compile", MODEL, "--dim", "batch=32", "-o", cls.artifact)
        said = cls.arenic("inspect", cls.artifact, "--json").stdout
        cls.inspected = json.loads(said)

    @classmethod
    def tearDownClass(cls):
        cls.driver.quit()
        shutil.rmtree(cls.folder)
        shutil.rmtree(cls.profile, ignore_errors=True)

    @staticmethod
    def arenic(*arguments_):
        command = [str(arguments.arenic), *map(str, arguments_)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done

    def tearDown(self):
        """No page said anything on the console or asked the network for anything."""
        console = self.driver.get_log("browser")
        self.assertEqual(console, [], "console")
        events = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        sent = [e for e in events if e["method"] == "Network.requestWillBeSent"]
        # Chromium's own start page asks for much.
        ours = [e["params"] for e in sent if e["params"]["documentURL"].startswith("file:")]
        urls = {e["request"]["url"] for e in ours} - {"data:,"}
        self.assertEqual(urls, self.opened)

    def setUp(self):
        self.opened = set()

    def report(self, source):
        page = self.folder / "page.html"
        self.arenic("report", source, "-o", page)
        return page

    def open(self, page):
        """Seconds until the page has drawn itself."""
        self.opened.add(page.as_uri())
        start = time.monotonic()
        self.driver.get(page.as_uri())
        self.frame()
        return time.monotonic() - start

    def frame(self):
        """Waits for a drawn frame."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done));")

    def js(self, code, *values):
        return self.driver.execute_script(code, *values)

    def text(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def centre(self, i):
        """Where the middle of the i-th rectangle's visible part is on the canvas."""
        return self.js("""
            const i = arguments[0], middle = (a, b, c, d) => (Math.max(a, c) + Math.min(b, d)) / 2;
            return [toX(middle(arena.start[i], arena.stop[i], view.x0, view.x1)),
                    toY(middle(arena.low[i], arena.high[i], view.y0, view.y1))];""", i)

    def actions(self, x, y):
        """The pointer at a point of the canvas."""
        canvas = self.driver.find_element(By.ID, "overlay")
        box = canvas.rect
        dx, dy = round(x - box["width"] / 2), round(y - box["height"] / 2)
        return ActionChains(self.driver, duration=0).move_to_element_with_offset(canvas, dx, dy)

    def hover(self, i):
        self.actions(*self.centre(i)).perform()
        self.frame()
        return self.text("#tip")

    def index(self, name):
        return self.js("return arena.columns.names.indexOf(arguments[0]);", name)

    def colours(self):
        """All colours on the canvas with the number of pixels of each."""
        return self.js("""
            const count = {}, d = context.getImageData(0, 0, base.width, base.height).data;
            for (let i = 0; i < d.length; i += 4) {
                const c = [d[i], d[i + 1], d[i + 2]].join();
                count[c] = (count[c] ?? 0) + 1;
            }
            return count;""")

    def view(self):
        return self.js("return [view.x0, view.x1, view.y0, view.y1];")

    def picture(self, name):
        if arguments.pictures:
            arguments.pictures.mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(arguments.pictures / f"{name}.png"))


class Artifact(Pages):
    def setUp(self):
        super().setUp()
        self.open(self.report(self.artifact))

    def test_all_kinds_of_the_legend_are_painted(self):
        kinds = [e.get_attribute("data-kind")
                 for e in self.driver.find_elements(By.CSS_SELECTOR, "#legend button")]
        self.assertEqual(set(kinds), {"input", "constant", "weight", "optimizer state",
                                      "activation", "gradient", "update", "scratch"})
        swatches = self.driver.find_elements(By.CSS_SELECTOR, "#legend .swatch")
        colours = [re.findall(r"\d+", e.value_of_css_property("background-color"))[:3]
                   for e in swatches]
        self.assertEqual(len({tuple(c) for c in colours}), len(kinds))
        painted = self.colours()
        for kind, colour in zip(kinds, colours):
            shades = self.js("""
                return SHADES.map((s) => mixed(arguments[0].map(Number), palette.page, s).join());""",
                colour)
            # The constants are too small to have a pixel of their own.
            if kind != "constant":
                self.assertGreater(sum(painted.get(s, 0) for s in shades), 0, kind)
        self.picture("artifact")

    def test_figures_agree_with_inspect(self):
        statistics = self.inspected["statistics"]
        figures = self.text("#figures")
        self.assertIn(f"{statistics['arena_bytes']:,} bytes", figures)
        self.assertEqual(self.js("return arena.peak;"), statistics["live_peak_bytes"])
        self.assertEqual(self.js("return arena.bound;"), statistics["lower_bound_bytes"])
        self.assertIn("Lower bound", figures)
        self.assertEqual(self.driver.title, "digits_step.onnx")
        sums = self.js("return arena.byKind.reduce((s, k) => s + k[last(arena.liveAt, arena.peakAt)], 0);")
        self.assertEqual(sums, statistics["live_peak_bytes"])
        self.assertIn("Alive at the peak", self.text("#moment"))

    def test_hovering_a_tensor_describes_it(self):
        for buffer in self.inspected["buffers"]:
            if buffer["name"] != "z2":
                continue
            i = self.index("z2")
            tip = self.hover(i)
            for part in ["z2", "activation", "f32[32,32,8,8]", f"{buffer['bytes']:,} bytes",
                         f"[{buffer['offset']:,}, {buffer['offset'] + buffer['bytes']:,})",
                         f"from {buffer['first']} Conv.z2 (conv)", f"to {buffer['last']} ",
                         "Made by `Conv.z2` (conv)", "writes over it in place"]:
                self.assertIn(part, tip)
            colour = self.js("""
                const [x, y] = arguments[0];
                return Array.from(context.getImageData(x, y - 12, 1, 1).data).slice(0, 3);""",
                self.centre(i))
            shades = self.js("""
                return SHADES.map((s) => mixed(palette.kinds[arena.kind[arguments[0]]],
                                               palette.page, s));""", i)
            self.assertIn(colour, shades)
        self.assertIn("carried from step to step", self.hover(self.index("conv2.weight")))
        self.picture("hover")
        # Beside the map nothing is described.
        self.actions(5, 5).perform()
        self.frame()
        self.assertEqual(self.text("#tip"), "")

    def test_every_visible_tensor_answers_where_it_is_drawn(self):
        wrong = self.js("""
            const wrong = [];
            for (let i = 0; i < arena.count; i += 1) {
                const x = (toX(arena.start[i]) + toX(arena.stop[i])) / 2;
                const y = (toY(arena.low[i]) + toY(arena.high[i])) / 2;
                const high = toY(arena.low[i]) - toY(arena.high[i]);
                const over = (k) => k > i && arena.low[k] < arena.high[i] && arena.low[i] < arena.high[k]
                    && arena.start[k] < arena.stop[i] && arena.start[i] < arena.stop[k];
                const free = !Array.from(arena.kind.keys()).some(over);
                if (high > 2 && free && rectangleAt(x, y) !== i) wrong.push(arena.columns.names[i]);
            }
            return wrong;""")
        self.assertEqual(wrong, [])

    def test_the_map_zooms_moves_and_comes_back(self):
        whole = self.view()
        box = self.js("return layout.map;")
        x, y = round(box["left"] + box["width"] / 2), round(box["top"] + box["height"] / 2)
        canvas = self.driver.find_element(By.ID, "overlay").rect
        origin = ScrollOrigin.from_viewport(round(canvas["x"]) + x, round(canvas["y"]) + y)
        ActionChains(self.driver, duration=0).scroll_from_origin(origin, 0, -400).perform()
        self.frame()
        near = self.view()
        self.assertLess(near[1] - near[0], (whole[1] - whole[0]) * 0.7)
        self.assertLess(near[3] - near[2], (whole[3] - whole[2]) * 0.7)
        self.picture("zoomed")
        self.actions(x, y).click_and_hold().move_by_offset(80, 40).release().perform()
        self.frame()
        moved = self.view()
        self.assertLess(moved[0], near[0])
        self.assertGreater(moved[2], near[2])
        self.assertAlmostEqual(moved[1] - moved[0], near[1] - near[0])
        self.actions(x, y).double_click().perform()
        self.frame()
        self.assertEqual(self.view(), whole)
        self.actions(x, y).click().send_keys("++", Keys.ARROW_LEFT).perform()
        self.frame()
        self.assertLess(self.view()[1] - self.view()[0], whole[1] - whole[0])
        self.driver.find_element(By.ID, "reset").click()
        self.frame()
        self.assertEqual(self.view(), whole)

    def test_kinds_can_be_hidden(self):
        button = self.driver.find_element(By.CSS_SELECTOR, '#legend [data-kind="scratch"]')
        i = self.js("return arena.columns.kind.indexOf(arena.columns.kinds.indexOf('scratch'));")
        self.assertIn("for this one task alone", self.hover(i))
        button.click()
        self.frame()
        self.assertEqual(button.get_attribute("aria-pressed"), "false")
        self.assertNotIn("for this one task alone", self.hover(i))
        button.click()
        self.frame()
        self.assertIn("for this one task alone", self.hover(i))

    def test_a_search_finds_by_name(self):
        search = self.driver.find_element(By.ID, "search")
        search.send_keys("pooled")
        self.frame()
        self.assertEqual(self.text("#found"), "2 found")
        search.send_keys(Keys.ENTER)
        self.frame()
        first = self.text("#tip b")
        search.send_keys(Keys.ENTER)
        self.frame()
        self.assertEqual({first, self.text("#tip b")}, {"pooled", "pooled_at"})
        self.picture("search")
        search.send_keys("!")
        self.frame()
        self.assertEqual(self.text("#found"), "0 found")
        search.send_keys(Keys.ESCAPE)
        self.frame()

    def test_a_click_lists_what_is_alive_then(self):
        i = self.index("a1")
        self.actions(*self.centre(i)).click().perform()
        self.frame()
        at = self.js("return chosen.moment;")
        a1 = next(b for b in self.inspected["buffers"] if b["name"] == "a1")
        self.assertEqual(at, (a1["first"] + a1["last"] + 1) // 2)
        alive = [b["name"] for b in self.inspected["buffers"] if b["first"] <= at <= b["last"]]
        listed = [e.text for e in self.driver.find_elements(
            By.CSS_SELECTOR, "#alive button span:nth-child(2)")]
        plain = [n for n in listed if not n.startswith("scratch")]
        self.assertEqual(sorted(plain), sorted(n for n in alive if n != "scratch"))
        self.driver.find_element(By.ID, "to-peak").click()
        self.assertIn("Alive at the peak", self.text("#moment"))

    def test_it_is_dark_where_the_system_is(self):
        light = self.js("return getComputedStyle(document.body).backgroundColor;")
        scheme = {"name": "prefers-color-scheme", "value": "dark"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.frame()
        self.picture("dark")
        dark = self.js("return [getComputedStyle(document.body).backgroundColor, palette.page[0]];")
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.assertNotEqual(light, dark[0])
        self.assertLess(dark[1], 64)

    def test_each_memory_space_has_a_map(self):
        page = self.folder / "two.html"
        text = self.report(self.artifact).read_text()
        mark = '<script type="application/json" id="data">'
        before, rest = text.split(mark)
        data, after = rest.split("</script>", 1)
        data = json.loads(data)
        data["arenas"].append({**data["arenas"][0], "name": "host", "lower_bound": None})
        page.write_text(before + mark + json.dumps(data) + "</script>" + after)
        self.open(page)
        device, host = self.driver.find_elements(By.CSS_SELECTOR, "#arenas button")
        self.assertEqual(device.get_attribute("aria-pressed"), "true")
        self.assertIn("Lower bound", self.text("#figures"))
        host.click()
        self.frame()
        self.assertEqual(host.get_attribute("aria-pressed"), "true")
        self.assertNotIn("Lower bound", self.text("#figures"))


class Placement(Pages):
    def placement(self, name, rows, header=("id", "lower", "upper", "size", "offset", "kind")):
        path = self.folder / name
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
        return path

    def test_hostile_names_are_only_text(self):
        rows = [(name, i, i + 2, 64, 64 * i, name[:40]) for i, name in enumerate(HOSTILE)]
        name = "<b onmouseover=alert(1)>&lt;.csv"
        self.open(self.report(self.placement(name, rows)))
        self.assertEqual(self.driver.title, name)
        self.assertEqual(self.text("h1"), name)
        for i, hostile in enumerate(HOSTILE):
            self.hover(i)
            shown = self.js("return document.querySelector('#tip b span:last-child').textContent;")
            self.assertEqual(shown, hostile.strip())
        self.assertEqual(self.driver.find_elements(By.CSS_SELECTOR, "img, main script, h1 *"), [])
        self.assertEqual(len(self.driver.find_elements(By.CSS_SELECTOR, "#legend button")), 8)
        self.picture("hostile")
        self.assertEqual(self.driver.title, name)

    def test_large_integers_keep_their_digits(self):
        offset, size, time_ = 2**58 + 1, 2**54 + 1, 2**60 + 1
        path = self.placement("large.csv", [("big", time_, time_ + 3, size, offset, "")])
        self.open(self.report(path))
        tip = self.hover(0)
        for part in [f"({size:,} bytes)", f"[{offset:,}, {offset + size:,})",
                     f"[{time_:,}, {time_ + 3:,})", "buffer"]:
            self.assertIn(part, tip)
        self.assertIn(f"time {time_:,}", self.text("#moment"))
        near = "for (let k = 0; k < 200; k += 1) zoom(300, 300, 0.5, 0.5); draw();"
        self.assertGreater(*self.js(near + "return [view.x1, view.x0];"))

    def test_nothing_placed_is_an_empty_map(self):
        self.open(self.report(self.placement("empty.csv", [])))
        self.assertIn("0 B", self.text("#figures"))

    def test_a_hundred_thousand_buffers(self):
        # 200 lanes of 500 buffers, one after the other, of uneven length.
        rows = []
        for lane in range(200):
            at = lane % 7
            for k in range(500):
                length = 1 + (lane * 31 + k * 17) % 97
                rows.append((f"t{lane}.{k}", at, at + length, 4096 - lane, 4096 * lane, ""))
                at += length
        page = self.report(self.placement("large.csv", rows))
        opened = self.open(page)
        frame, hover = self.js("""
            const start = performance.now();
            draw(redraw());
            const drawn = performance.now();
            for (let k = 0; k < 100; k += 1) {
                hover({ x: layout.map.left + 3 * k, y: layout.map.top + k });
                draw();
            }
            return [drawn - start, (performance.now() - drawn) / 100];""")
        first = self.js("""
            return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0;""")
        print(f"\n100,000 buffers: page of {page.stat().st_size / 2**20:.1f} MiB open in "
              f"{opened:.2f} s (first paint {first:.0f} ms), a frame {frame:.1f} ms, "
              f"a hover {hover:.2f} ms")
        self.assertLess(opened, PATIENCE["open"])
        self.assertLess(hover / 1000, PATIENCE["react"])
        self.assertEqual(self.js("return arena.count;"), 100_000)
        self.assertGreater(len(self.colours()), 4)
        self.picture("large")
        search = self.driver.find_element(By.ID, "search")
        search.send_keys("t123.456", Keys.ENTER)
        self.frame()
        self.assertEqual(self.text("#found"), "1 found")
        self.assertIn("t123.456", self.text("#tip"))
        self.picture("large-found")


def main():
    global arguments
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("arenic", type=Path, help="the binary")
    parser.add_argument("--pictures", type=Path, help="folder for screenshots")
    arguments, rest = parser.parse_known_args()
    arguments.arenic = arguments.arenic.resolve()
    if not arguments.arenic.exists():
        parser.error(f"{arguments.arenic} is not there; cargo build makes it")
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
