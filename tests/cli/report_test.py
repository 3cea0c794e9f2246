# SPDX-License-Identifier: Apache-2.0
"""The pages of --report: well-formed, alone, the same every time, and with the numbers of --json.

usage: report_test.py TRIMTAB SOURCE_DIR
"""
import html.parser
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TRIMTAB, SOURCE = sys.argv.pop(1), sys.argv.pop(1)
MODEL = os.path.join(SOURCE, "models/tiny-moe")
TRACE = os.path.join(SOURCE, "models/tiny-moe/trace.npy")
VOID = {
    "meta", "br", "hr", "input", "img", "link", "base", "source", "area", "col", "embed", "track",
    "wbr"
}


class Page(html.parser.HTMLParser):
    """Fails where tags do not nest, where an attribute or an id comes twice, and where something
    would be loaded."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.numbers, self.rows, self.texts = [], set(), [], [], {}
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        attributes = dict(attributes)
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "a"), f"<{tag}>"
        loading = {"src", "href", "srcset", "action", "data", "poster"}
        assert not loading & set(names), f"<{tag}> loads {attributes}"
        if "id" in attributes:
            assert attributes["id"] not in self.ids, f"two ids {attributes['id']}"
            self.ids.add(attributes["id"])
        if tag == "tr":
            self.rows.append([])
        if tag == "data":
            self.numbers.append({"key": attributes.get("data-key"),
                                 "value": float(attributes["value"]), "text": "",
                                 "in": [name for name, _ in self.open]})
            if "td" in self.numbers[-1]["in"]:
                self.rows[-1].append(self.numbers[-1])
        if tag not in VOID:
            self.open.append((tag, attributes.get("id")))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if not self.open:
            return
        tag, name = self.open[-1]
        self.texts.setdefault(f"#{name}" if name else tag, []).append(data)
        if tag == "data":
            self.numbers[-1]["text"] += data

    def headline(self, key):
        found = [
            one["value"] for one in self.numbers if one["key"] == key and "table" not in one["in"]
        ]
        assert len(found) == 1, f"{key}: {found}"
        return found[0]

    def column(self, key):
        return [one["value"] for row in self.rows for one in row if one["key"] == key]


class ReportPage(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_both(self, *arguments, name="page.html"):
        """The page's text, the parsed page and the JSON of one command."""
        file = self.path(name)
        run = subprocess.run([TRIMTAB, *arguments, "--json", "--report", file],
                             capture_output=True, check=True)
        with open(file, encoding="utf-8") as page:
            text = page.read()
        return text, Page(text), json.loads(run.stdout)

    def check_lacks(self, text, word):
        at = text.find(word)
        self.assertEqual(at, -1, f"{word} in ...{text[max(at - 60, 0):at + 60]}...")

    def check_page(self, text, page):
        self.assertTrue(text.startswith("<!DOCTYPE html>\n"))
        for word in ("http:", "https:", "url(", "@import", "import(", "fetch(", "XMLHttpRequest"):
            self.check_lacks(text, word)
        self.assertTrue("default-src 'none'" in text)
        self.assertLess(len(text.encode()), 2_000_000)
        for number in page.numbers:
            shown = number["text"].replace(",", "")
            decimals = len(shown.partition(".")[2])
            self.assertEqual(shown, f"{number['value']:.{decimals}f}", number)
        return json.loads("".join(page.texts["#data"]))

    def test_plan(self):
        text, page, plan = self.run_both("plan", TRACE, "--ranks", "4", "--slots", "9", "--nodes",
                                         "2")
        data = self.check_page(text, page)
        pars = ("par_before", "par_after", "par_step_before", "par_step_after",
                "par_step_after_high", "lower_bound", "lower_bound_split")
        for key in (*pars, "moves", "moves_per_layer", "receive_peak", "duplicates"):
            self.assertEqual(page.headline(key), plan[key], key)
        for key in pars:
            self.assertEqual(len(page.column(key)), 4)
            self.assertAlmostEqual(sum(page.column(key)) / 4, plan[key], 12, key)
        self.assertEqual(sum(page.column("moves")), plan["moves"])
        self.assertEqual(max(page.column("receive_peak")), plan["receive_peak"])
        self.assertEqual(sum(len(slots) for slots in data["moved"]), plan["moves"])
        self.assertEqual(data["nodes"], [0, 0, 1, 1])
        for state, key in zip(data["states"], ("par_before", "par_after")):
            self.assertAlmostEqual(
                sum(max(loads) for loads in state["rank"]) / 4 / data["rank_parts"], plan[key], 4)
        for series, key in zip(data["time"]["series"], ("par_step_before", "par_step_after")):
            self.assertEqual(len(series["par"]), 128)
            self.assertAlmostEqual(sum(series["par"]) / 128, plan[key], 4)
        for section in ("headlines", "ranks", "rank-map", "expert-map", "placement", "time",
                        "moves", "definitions"):
            self.assertIn(section, page.ids)

    def test_plan_draws_the_placement_it_writes(self):
        out = self.path("placement.json")
        text, page, _ = self.run_both("plan", TRACE, "--ranks", "4", "--slots", "9", "-o", out)
        with open(out, encoding="utf-8") as file:
            written = json.load(file)
        self.assertEqual(
            self.check_page(text, page)["states"][1]["map"], written["physical_to_logical_map"])

    def test_curve(self):
        arguments = ("plan", TRACE, "--ranks", "4", "--slots", "9")
        text, page, plan = self.run_both(*arguments, "--curve")
        data = self.check_page(text, page)
        self.assertIn("curve", page.ids)
        curve, drawn = plan["curve"], data["curve"]["points"]
        self.assertGreater(len(curve), 10)
        self.assertEqual(len(drawn), len(curve))
        for (moves, par_step, par), point in zip(drawn, curve):
            self.assertEqual(moves, point["moves"])
            self.assertAlmostEqual(par_step, point["par_step"], 4)
            self.assertAlmostEqual(par, point["par"], 4)
        moves, par_step, par = data["curve"]["plan"]
        self.assertEqual(moves, plan["moves"])
        self.assertAlmostEqual(par_step, plan["par_step_after"], 4)
        self.assertAlmostEqual(par, plan["par_after"], 4)
        _, page, _ = self.run_both(*arguments, name="without.html")
        self.assertNotIn("curve", page.ids)

    def test_traffic(self):
        tokens = self.path("t.topk.txt")
        with open(tokens, "w", encoding="utf-8") as file:
            file.write("# layers=1 experts=4 topk=2\nS 0 3\n0 2\n0 1\n3 1\n")
        text, page, result = self.run_both("inspect", tokens, "--ranks", "4", "--nodes", "2")
        data = self.check_page(text, page)
        self.assertIn("traffic", page.ids)
        self.assertEqual(data["nodes"], [0, 0, 1, 1])
        mean = data["traffic"]["mean"]
        drawn = data["states"][0]["traffic"]
        for row, copies in zip(drawn, result["traffic"]["rank_copies"]):
            for cell, value in zip(row, copies):
                self.assertAlmostEqual(cell / data["rank_parts"] * mean, value, 3)
        text, page, plan = self.run_both("plan", tokens, "--ranks", "2", "--slots", "3")
        states = self.check_page(text, page)["states"]
        self.assertEqual([len(state["traffic"]) for state in states], [2, 2])
        _, page, _ = self.run_both("plan", TRACE, "--ranks", "4", "--slots", "9")
        self.assertNotIn("traffic", page.ids)

    def test_bytes(self):
        _, page, plan = self.run_both("plan", TRACE, "--ranks", "4", "--slots", "9",
                                      "--expert-bytes", "1000")
        self.assertIn(1000 * plan["moves"],
                      [one["value"] for one in page.numbers if not one["key"]])
        _, page, result = self.run_both("replay", TRACE, "--ranks", "4", "--slots", "9", "--window",
                                        "32", "--policies", "swift", "--expert-bytes", "1000")
        moves = 4 * result["policies"]["swift"]["moves_per_layer_per_replan"]
        self.assertGreater(moves, 0)
        self.assertAlmostEqual(page.rows[1][-1]["value"], 1000 * moves)

    def test_inspect(self):
        text, page, found = self.run_both("inspect", TRACE, "--ranks", "4", "--window", "16")
        data = self.check_page(text, page)
        self.assertEqual(page.headline("tokens"), found["tokens"])
        for key in ("par", "par_step_mean", "par_step_worst", "worst_step", "noise_floor",
                    "drift_mean", "drift_worst"):
            self.assertEqual(page.column(key), [layer[key] for layer in found["per_layer"]], key)
        self.assertEqual(len(data["states"]), 1)
        self.assertNotIn("moves", page.ids)

    def test_check(self):
        placement = self.path("placement.json")
        self.run_both("plan", TRACE, "--ranks", "4", "--slots", "9", "-o", placement)
        text, page, found = self.run_both("check", placement, "--loads", TRACE)
        data = self.check_page(text, page)
        for key in ("par_per_layer", "par_step_mean_per_layer", "par_step_worst_per_layer",
                    "duplicates_per_layer"):
            self.assertEqual(page.column(key), found[key], key)
        self.assertEqual([max(loads) for loads in data["states"][0]["rank"]],
                         [round(par * data["rank_parts"]) for par in found["par_per_layer"]])
        self.assertAlmostEqual(
            sum(data["time"]["series"][0]["par"]) / 128,
            sum(found["par_step_mean_per_layer"]) / 4, 4)
        self.assertIn("ranks", page.ids)

    def test_a_placement_alone(self):
        placement = self.path("placement.json")
        with open(placement, "w", encoding="utf-8") as file:
            json.dump({"format": "trimtab_placement", "version": 1, "num_experts": 3,
                       "slots_per_rank": [3, 2], "layer_ids": [3, 7],
                       "physical_to_logical_map": [[0, 0, 1, 2, 1], [0, 1, 2, 0, 1]]}, file)
        text, page, found = self.run_both("check", placement)
        data = self.check_page(text, page)
        self.assertEqual(page.column("duplicates_per_layer"), found["duplicates_per_layer"])
        self.assertEqual(data["ids"], [3, 7])
        self.assertEqual(data["states"][0]["map"], [[0, 0, 1, 2, 1], [0, 1, 2, 0, 1]])
        self.assertTrue({"placement", "expert-map"} <= page.ids)
        self.assertFalse({"ranks", "rank-map", "time", "moves"} & page.ids)
        converted, page, _ = self.run_both("convert", placement, self.path("out.json"))
        self.assertEqual(
            converted.replace(">Convert: ", ">Check: ").replace(" convert<", " check<"), text)

    def test_convert_of_loads_shows_what_inspect_shows(self):
        inspected, _, _ = self.run_both("inspect", TRACE, "--ranks", "4")
        converted, page, _ = self.run_both("convert", TRACE, self.path("out.csv"), "--ranks", "4")
        self.check_page(converted, page)
        self.assertEqual(
            converted.replace(">Convert: ", ">Inspect: ").replace(" convert<", " inspect<"),
            inspected)

    def test_replay(self):
        text, page, result = self.run_both("replay", TRACE, "--ranks", "4", "--slots", "9",
                                           "--window", "16", "--policies", "trim,static,deepseek")
        data = self.check_page(text, page)
        policies = result["policies"]
        for key in ("par_next_mean", "par_next_worst", "first_plan_moves",
                    "moves_per_layer_per_replan"):
            self.assertEqual(page.column(key), [one[key] for one in policies.values()], key)
        means = [
            one["value"] for one in page.numbers
            if one["key"] == "par_next_mean" and "table" not in one["in"]
        ]
        self.assertEqual(means, [one["par_next_mean"] for one in policies.values()])
        series = {one["name"]: one for one in data["time"]["series"]}
        self.assertEqual(list(series), ["start", "trim", "static", "deepseek"])
        self.assertEqual(series["start"]["par"], series["static"]["par"])
        for name, one in policies.items():
            self.assertAlmostEqual(sum(series[name]["par"]) / 7, one["par_next_mean"], 4)
            self.assertEqual(max(series[name]["worst"]), round(one["par_next_worst"], 4))
            self.assertEqual(series[name]["moves"][0], one["first_plan_moves"])
            self.assertAlmostEqual(
                sum(series[name]["moves"][1:]) / 6 / 4, one["moves_per_layer_per_replan"])
        self.assertEqual([state["name"] for state in data["states"]], list(series))
        self.assertEqual(data["states"][0]["rank"], data["states"][2]["rank"])

    def test_replay_draws_what_the_split_rule_gives(self):
        loads = self.path("loads.csv")
        with open(loads, "w", encoding="utf-8") as file:
            file.write("0,0,0,4\n0,0,1,2\n1,0,0,5\n1,0,1,2\n")
        command = ("replay", loads, "--ranks", "2", "--slots", "2", "--nodes", "2", "--window", "1",
                   "--policies", "static")
        for rule, par in (("equal", 1), ("split", 8 / 7)):  # seven tokens on two ranks, whole ones
            text, page, result = self.run_both(*command, "--split", rule)
            data = self.check_page(text, page)
            self.assertEqual(data["nodes"], [0, 1])
            self.assertAlmostEqual(result["policies"]["static"]["par_next_mean"], par)
            for state, series in zip(data["states"], data["time"]["series"]):
                self.assertAlmostEqual(max(state["rank"][0]) / data["rank_parts"], par, 4)
                self.assertAlmostEqual(series["par"][0], par, 4)
            self.assertEqual("by the rule split" in " ".join(page.texts["dd"]), rule == "split")

    def test_run(self):
        text, page, found = self.run_both("run", MODEL, "--ranks", "3", "--steps", "20")
        data = self.check_page(text, page)
        self.assertEqual(page.column("par_per_layer"), found["par_per_layer"])
        for key in ("tokens", "tokens_per_second"):
            self.assertEqual(page.headline(key), found[key], key)
        state, = data["states"]
        self.assertEqual(state["tokens"], [sum(loads) for loads in found["rank_load"]])
        self.assertEqual(state["rank"],
                         [[round(3 * data["rank_parts"] * load / sum(loads)) for load in loads]
                          for loads in found["rank_load"]])
        self.assertEqual([max(loads) for loads in state["rank"]],
                         [round(par * data["rank_parts"]) for par in found["par_per_layer"]])
        self.assertEqual(data["tokens"], state["tokens"])
        self.assertEqual(data["time"]["points"], list(range(found["steps"])))
        thirds = [one["value"] for one in page.numbers if one["key"] == "par_by_third"]
        self.assertEqual(len(thirds), 3)
        self.assertTrue(all(1 <= par <= 3 for par in thirds))
        self.assertTrue(
            {"ranks", "rank-map", "expert-map", "placement", "time", "definitions"} <= page.ids)
        self.assertNotIn("moves", page.ids)

    def test_same_bytes_every_time(self):
        sizes = ["--ranks", "4", "--slots", "9"]
        for command in (["plan", TRACE, *sizes], ["inspect", TRACE],
                        ["replay", TRACE, *sizes, "--window", "32", "--policies", "trim"]):
            self.assertEqual(
                self.run_both(*command)[0],
                self.run_both(*command, name="again.html")[0])

    def test_file_names_are_text(self):
        name = self.path("<q>&\"'</script>\x01.csv".replace("/", "\u2215"))
        with open(name, "w", encoding="utf-8") as file:
            file.write("0,0,4\n0,1,1\n")
        text, page, _ = self.run_both("inspect", name, "--ranks", "2")
        self.check_page(text, page)
        self.assertEqual("".join(page.texts["h1"]),
                         "Inspect: " + os.path.basename(name).replace("\x01", "\ufffd"))
        self.check_lacks(text, "<q>")

    def test_odd_sizes(self):
        loads = self.path("loads.csv")
        for counts, arguments in (
                ("0,0,5\n0,1,3\n", ["--ranks", "2", "--slots", "1"]),
                ("0,0,5\n0,1,3\n", ["--ranks", "1", "--slots", "2"]),
                ("0,0,0\n0,1,0\n1,0,3\n1,1,0\n", ["--ranks", "2", "--slots", "2"])):
            with open(loads, "w", encoding="utf-8") as file:
                file.write(counts)
            text, page, plan = self.run_both("plan", loads, *arguments)
            data = self.check_page(text, page)
            self.assertEqual(page.headline("par_after"), plan["par_after"])
            mean = data["rank_parts"] * int(arguments[1])
            self.assertEqual([sum(loads) for loads in data["states"][0]["rank"]],
                             [mean if tokens > 0 else 0 for tokens in data["tokens"]])
            self.assertNotIn("time", page.ids)
        # The last rank holds nothing.
        text, page, _ = self.run_both("inspect", loads, "--ranks", "3")
        self.assertEqual(self.check_page(text, page)["states"][0]["slots"], [1, 1, 0])

    def dump_dom(self, browser, page):
        return subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000",
             "--dump-dom", "--enable-logging=stderr", f"--user-data-dir={self.path('profile')}",
             page], capture_output=True, text=True, timeout=120, check=False)

    def test_a_browser_draws_everything(self):
        browser = shutil.which("chromium") or shutil.which("google-chrome")
        if browser is None:
            self.skipTest("no chromium or google-chrome")
        if self.dump_dom(browser, "about:blank").returncode != 0:
            self.skipTest("the browser does not start here")
        placement = self.path("placement.json")
        self.run_both("plan", TRACE, "--ranks", "4", "--slots", "9", "-o", placement)
        for command, drawings in ((["plan", TRACE, "--ranks", "4", "--slots", "9"], 15),
                                  (["inspect", TRACE], 9), (["check", placement], 2),
                                  (["run", MODEL, "--steps", "8"], 9)):
            self.run_both(*command)
            run = self.dump_dom(browser, "file://" + self.path("page.html"))
            self.assertEqual(run.returncode, 0, run.stderr)
            self.check_lacks(run.stderr, "CONSOLE")  # errors of the script
            self.assertGreaterEqual(run.stdout.split("<script")[0].count('role="img"'), drawings)
            self.check_lacks(run.stdout, "NaN")
            self.check_lacks(run.stdout.split("<script")[0], "undefined")


if __name__ == "__main__":
    unittest.main()
