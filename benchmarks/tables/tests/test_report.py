"""The report counts what it says that it counts."""

import json
import tempfile
import unittest
from pathlib import Path

from tables import report
from tables.summary import middle, summarize
from tables.tasks import TASKS


def result(task: str, split: int, method: str, **figures) -> dict:
    return {"status": "done", "task": task, "split": split, "method": method, "rows": 100, "inputs": 2} | {
        "seconds": 1.0,
        **figures,
    }


def function(task: str, split: int, method: str, excess: float, *, best_row: float = 1.0, **figures) -> dict:
    least = TASKS[task].source.minimum
    return result(
        task,
        split,
        method,
        r2=0.9,
        best_row=least + best_row,
        minimum={"truth": least + excess, "in_rows": True, "x": [0, 0]},
        **figures,
    )


def program(task: str, split: int, excess: float, exit_code: int = 0, **more) -> dict:
    return function(task, split, "bilip", excess, exit_code=exit_code, messages=[], program="bilip 1", **more)


class Counts(unittest.TestCase):
    def test_a_minimum_below_the_best_row_counts_per_split(self):
        results = [
            program("rosenbrock-2", 0, 0.5),
            program("rosenbrock-2", 1, 1.5),
            program("powell-4", 0, 1.0),
        ]
        single = summarize(results)["counts"]["single"]
        self.assertEqual(single["at_most_best_row"], {"count": 2, "of": 3})

    def test_a_job_without_a_minimum_counts_against_the_program(self):
        failed = {"status": "failed", "error": "no", "task": "rosenbrock-2", "split": 0, "method": "bilip"}
        summary = summarize([failed, function("rosenbrock-2", 0, "gp", 0.1)])
        self.assertEqual(summary["counts"]["single"]["at_most_best_row"], {"count": 0, "of": 1})
        self.assertEqual(summary["counts"]["single"]["at_most_best_alternative"], {"count": 0, "of": 1})
        self.assertEqual(len(summary["failures"]), 1)

    def test_a_job_without_a_figure_counts_as_the_worst(self):
        self.assertEqual(middle([1.0, None, 3.0]), 3.0)
        self.assertEqual(middle([1.0, None, 3.0], larger=True), 1.0)
        self.assertIsNone(middle([1.0, None]))

    def test_alternatives_are_compared_by_medians(self):
        spread = TASKS["rosenbrock-2"].source.spread
        for mine, below, near in ((0.09, 1, 1), (0.1 + 0.0005 * spread, 0, 1), (0.1 + 0.002 * spread, 0, 0)):
            results = [program("rosenbrock-2", s, mine) for s in range(3)]
            results += [function("rosenbrock-2", s, "gp", v) for s, v in enumerate((0.0, 0.1, 9.0))]
            results += [function("rosenbrock-2", s, "mlp", 0.2) for s in range(3)]
            single = summarize(results)["counts"]["single"]
            self.assertEqual(single["at_most_best_alternative"]["count"], below)
            self.assertEqual(single["at_most_or_near"]["count"], near)

    def test_exit_codes_are_counted_per_group(self):
        results = [program("rosenbrock-2", s, 0.0, exit_code=s == 0) for s in range(5)]
        results += [program("branin-2", s, 0.0, exit_code=1) for s in range(5)]
        results += [program("outside-2", s, 0.0, exit_code=s % 2) for s in range(4)]
        counts = summarize(results)["counts"]
        self.assertEqual(counts["single"]["exit_1"], {"count": 1, "of": 5})
        self.assertEqual(counts["several"]["exit_1"], {"count": 5, "of": 5})
        self.assertEqual(counts["edge"]["exit_1"], {"count": 2, "of": 4})

    def test_a_bad_fit_of_a_table_is_silent_unless_it_is_said(self):
        ways = [(0, []), (1, []), (0, ["a model without a guarantee explains 90 %"])]
        results = []
        for split, (exit_code, messages) in enumerate(ways):
            results.append(
                result(
                    "diabetes",
                    split,
                    "bilip",
                    r2=0.3,
                    exit_code=exit_code,
                    messages=messages,
                    program="bilip 1",
                )
            )
            results.append(result("diabetes", split, "quadratic", r2=0.4))
        tables = summarize(results)["counts"]["tables"]
        self.assertEqual(tables["near_best_alternative"], {"count": 0, "of": 1})
        self.assertEqual(tables["far_below_quadratic_unsaid"]["count"], 1)
        self.assertEqual(tables["far_below_quadratic_unsaid"]["where"][0]["split"], 0)


class Page(unittest.TestCase):
    def test_results_become_a_page_and_a_file(self):
        results = [
            program("rosenbrock-2", 0, 0.01, interval={"coverage": 0.91, "width": 0.2}),
            function("rosenbrock-2", 0, "quadratic", 200.0),
            result("diabetes", 0, "bilip", r2=0.41, exit_code=0, messages=[], program="bilip 1"),
            result("diabetes", 0, "quadratic", r2=0.42),
            result(
                "thermocouple-k-bilipnet", 0, "bilip", rms=0.5, largest=1.0, exit_code=0, program="bilip 1"
            ),
            {"status": "timeout", "error": "stopped", "task": "diabetes", "split": 0, "method": "gp"},
        ]
        machine = {
            "processor": "P",
            "cores": 2,
            "jobs": 1,
            "threads": 1,
            "python": "3",
            "packages": {"numpy": "2"},
        }
        with tempfile.TemporaryDirectory() as folder:
            for i, r in enumerate(results):
                file = Path(folder, "jobs", r["task"], f"{i}.json")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(r))
            Path(folder, "machine.json").write_text(json.dumps(machine))
            report.write(Path(folder))
            page = Path(folder, "README.md").read_text()
            stored = json.loads(Path(folder, "results.json").read_text())
        self.assertIn("| rosenbrock-2 | 100 |  | 1 | **0.01** | 200 |", page)
        self.assertIn("1 of 1 (100 %)", page)
        self.assertIn("thermocouple-k-bilipnet (°C)", page)
        self.assertIn("diabetes split 0 gp: stopped", page)
        self.assertEqual(stored["tasks"]["rosenbrock-2"]["methods"]["bilip"]["coverage"], [0.91])

    def test_results_of_two_builds_are_not_mixed_unnoticed(self):
        machine = {"processor": "P", "cores": 2, "jobs": 1, "threads": 1, "python": "3", "packages": {}}
        self.assertIn("mixed", report.on(machine, ["bilip 1", "bilip 2"]))
        self.assertNotIn("mixed", report.on(machine, ["bilip 1"]))


if __name__ == "__main__":
    unittest.main()
