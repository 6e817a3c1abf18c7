"""Runs jobs side by side, each in a process of its own with a file of its own."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from .job import Result, measure
from .program import Program
from .tasks import TASKS

PACKAGES = ("numpy", "scipy", "scikit-learn", "xgboost", "xgboost-cpu")
THREAD_VARIABLES = ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """A method on a split of a task."""

    task: str
    split: int
    method: str

    def file(self, folder: Path) -> Path:
        return folder / "jobs" / self.task / f"{self.split}-{self.method}.json"

    def __str__(self) -> str:
        return f"{self.task} split {self.split} {self.method}"


@dataclass(frozen=True)
class Settings:
    """How jobs are run."""

    out: Path
    bilip: Path | None
    jobs: int = 1
    threads: int = 1
    timeout: float = 3600.0
    again: bool = False


def jobs_of(only: str, methods: list[str], splits: int) -> list[Job]:
    """Jobs of the tasks that match and are at hand, split by split."""
    tasks = [task for name, task in TASKS.items() if re.search(only, name) and not task.missing()]
    return [
        Job(task.name, split, method)
        for split, task, method in itertools.product(range(splits), tasks, methods)
        if method in task.methods
    ]


def run(jobs: list[Job], settings: Settings) -> int:
    """Runs what has no result yet; returns how many jobs gave none."""
    settings.out.mkdir(parents=True, exist_ok=True)
    write(settings.out / "machine.json", machine(settings))
    todo = [job for job in jobs if settings.again or not job.file(settings.out).exists()]
    print(f"{len(jobs)} jobs, {len(jobs) - len(todo)} of them done before", flush=True)
    failed = 0
    processes = Processes(settings)
    # Ended by whatever signal, no job is left behind.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.default_int_handler)
    with ThreadPoolExecutor(settings.jobs) as pool:
        try:
            futures = {pool.submit(processes.run, job): job for job in todo}
            for done, future in enumerate(as_completed(futures), 1):
                result = future.result()
                failed += result["status"] != "done"
                print(f"[{done}/{len(todo)}] {futures[future]}: {in_words(result)}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.stop()
            raise
    return failed


class Processes:
    """The processes of the jobs that are running."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.running: set[subprocess.Popen[str]] = set()
        self.stopped = False

    def run(self, job: Job) -> Result:
        """Runs a job and stores what came of it, a failure or a timeout included."""
        settings = self.settings
        command = [sys.executable, "-m", __package__, "job", job.task, str(job.split), job.method]
        if settings.bilip is not None:
            command += ["--bilip", str(settings.bilip)]
        clock = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | dict.fromkeys(THREAD_VARIABLES, str(settings.threads)),
            cwd=Path(__file__).parent.parent,
            # A session of its own, so that the program that it calls ends with it.
            start_new_session=True,
        )
        self.running.add(process)
        try:
            output, messages = process.communicate(timeout=settings.timeout)
            if process.returncode == 0:
                result = {"status": "done"} | json.loads(output)
            else:
                result = {"status": "failed", "error": (messages.strip().splitlines() or ["no message"])[-1]}
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            result = {"status": "timeout", "error": f"stopped after {settings.timeout:g} s"}
        self.running.discard(process)
        result |= {
            "task": job.task,
            "split": job.split,
            "method": job.method,
            "threads": settings.threads,
            "job_seconds": round(time.perf_counter() - clock, 3),
        }
        if not self.stopped:
            write(job.file(settings.out), result)
        return result

    def stop(self) -> None:
        """Ends what is running; what it would have found is not stored."""
        self.stopped = True
        for process in list(self.running):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def in_words(result: Result) -> str:
    """A job's result on one line."""
    if result["status"] != "done":
        return f"{result['status']}: {result['error']}"
    parts = list(figures(result))
    return f"{', '.join(parts)} in {result['job_seconds']:.1f} s"


def figures(result: Result) -> Iterator[str]:
    if result.get("r2") is not None:
        yield f"R2 {result['r2']:.4f}"
    if result.get("rms") is not None:
        yield f"rms {result['rms']:.3g}"
    if result.get("minimum") and result["minimum"]["truth"] is not None:
        yield f"true value {result['minimum']['truth']:.4g} (best row {result['best_row']:.4g})"
    if "exit_code" in result:
        yield f"exit code {result['exit_code']}"


def machine(settings: Settings) -> Result:
    """Where the figures are from."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": versions,
        "program": Program(settings.bilip).identity if settings.bilip else None,
        "jobs": settings.jobs,
        "threads": settings.threads,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def write(path: Path, value: Result) -> None:
    """Writes JSON atomically: an interrupted run leaves no half of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value, ensure_ascii=False) + "\n")
    new.replace(path)


def print_job(job: Job, bilip: Path | None) -> None:
    """The command of a single job: its result as JSON on standard output."""
    print(json.dumps(measure(job.task, job.split, job.method, bilip)))
