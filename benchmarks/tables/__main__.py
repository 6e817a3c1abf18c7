"""The command line: `python -m tables run|report|list`."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from . import report, run
from .tasks import METHODS, TASKS


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tables", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    runs = commands.add_parser("run", help="run jobs that have no result yet")
    runs.add_argument("--bilip", type=Path, help="the program (needed for the method bilip)")
    runs.add_argument("--jobs", type=int, default=1, help="jobs side by side [1]")
    runs.add_argument("--threads", type=int, default=1, help="threads of each job [1]")
    runs.add_argument("--only", default="", metavar="REGEX", help="tasks whose name matches")
    runs.add_argument("--methods", type=methods, default=list(METHODS), help=f"[{','.join(METHODS)}]")
    runs.add_argument("--splits", type=int, default=5, help="splits of every task [5]")
    runs.add_argument("--timeout", type=float, default=3600, help="seconds of a job at most [3600]")
    runs.add_argument("--again", action="store_true", help="run jobs again that have a result")
    runs.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where results are kept")

    pages = commands.add_parser("report", help="write results.json and README.md of a folder of results")
    pages.add_argument("folder", type=Path)

    commands.add_parser("list", help="list the tasks, and what is missing for them")

    job = commands.add_parser("job", help="run a single job and print its result")
    job.add_argument("task", choices=TASKS, metavar="task")
    job.add_argument("split", type=int)
    job.add_argument("method", choices=METHODS)
    job.add_argument("--bilip", type=Path)
    return parser


def methods(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: the methods are {', '.join(METHODS)}")
    return names


def main() -> int:
    parser = arguments()
    args = parser.parse_args()
    if args.command == "report":
        report.write(args.folder)
        return 0
    if args.command == "list":
        for task in TASKS.values():
            missing = task.missing()
            print(f"{task.kind:12} {task.name:24} {f'missing: {missing}' if missing else task.source.about}")
        return 0
    bilip = args.bilip.resolve() if args.bilip else None
    if bilip is not None and not bilip.is_file():
        parser.error(f"--bilip {args.bilip}: no such file")
    if args.command == "job":
        run.print_job(run.Job(args.task, args.split, args.method), bilip)
        return 0
    if "bilip" in args.methods and bilip is None:
        parser.error("the method bilip needs --bilip PATH; or give --methods without it")
    jobs = run.jobs_of(args.only, args.methods, args.splits)
    settings = run.Settings(args.out, bilip, args.jobs, args.threads, args.timeout, args.again)
    for name, task in TASKS.items():
        if re.search(args.only, name) and task.missing():
            print(f"without {name}: {task.missing()}")
    return 1 if run.run(jobs, settings) else 0


if __name__ == "__main__":
    sys.exit(main())
