"""Mutation testing of the deciding modules: change the code in one place, and see that a test fails.

The modules are those of the purity contract in `pyproject.toml`. Places in their code are drawn with a fixed seed, and
at each place one of the changes that Cosmic Ray knows. A mutant counts as caught if a test of `tests/unit` or
`tests/property` fails or doesn't end; the simulation is not run. Changes that aren't valid Python, or only change an
annotation, which nobody evaluates, are not drawn.

The work happens in copies of this folder under `.mutation/`; results are kept there, so that a
stopped run can go on. docs/mutation.md says what became of the survivors.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import grimp
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult

from tools.mutants import ROOT, Mutant, deciding_modules, diff_of, draw, path_of

WORK = ROOT / ".mutation"
PACKAGES = ("statehouse", "processor", "query_service", "router", "pyspark_statehouse", "tests")
TESTS = ("tests/unit", "tests/property")
# Tests that read the modules' code instead of importing them.
READERS = ("tests/unit/test_purity.py",)
# Tests at most this many imports from a module run first: its own, and those that reach it through a helper.
NEAR = 2
# How much longer than without a mutant tests may take before they count as not ending.
PATIENCE = 3.0
PATIENCE_S = 30.0
_WITHOUT_MUTANTS_S = 3600.0
_PASSED, _FAILED, _NOT_IMPORTED, _NOT_BEGUN = 0, 1, 2, 4  # pytest's exit codes
# What it says with the last one if a conftest.py can't be imported, and not if its arguments are wrong.
_CONFTEST_NOT_IMPORTED = "while loading conftest"


# Which tests.


def distances_of_tests(module: str, graph: grimp.ImportGraph) -> dict[str, int]:
    """Return the test files that reach a module, with how many imports away it is, the nearest first."""
    folders = tuple(each.replace("/", ".") + "." for each in TESTS)
    found = {
        test: len(graph.find_shortest_chain(test, module) or ()) - 1
        for test in graph.find_downstream_modules(module)
        if test.startswith(folders) and test.rsplit(".", 1)[1].startswith("test_")
    }
    ordered = sorted(found, key=lambda test: (found[test], not test.endswith(module.rsplit(".", 1)[1]), test))
    return {test.replace(".", "/") + ".py": found[test] for test in ordered}


class Copies:
    """Copies of this folder's tracked files, one a job; each is used by one mutant at a time."""

    def __init__(self, count: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for number in range(count):
            copy = WORK / f"copy-{number}"
            shutil.rmtree(copy, ignore_errors=True)
            for name in filter(None, files.split("\0")):
                if (ROOT / name).exists():
                    (copy / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / name, copy / name)
            self._free.put(copy)

    @contextmanager
    def one(self) -> Iterator[Path]:
        """Take a copy for a while."""
        copy = self._free.get()
        try:
            yield copy
        finally:
            self._free.put(copy)


def run_tests(copy: Path, tests: Sequence[str], timeout_s: float, *options: str) -> tuple[int | None, str]:
    """Run tests in a copy; return pytest's exit code, None if it did not end, and its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not long", "--hypothesis-profile=mutation"]
    # Bytecode is not written: its time stamps are too coarse to tell a mutant from the original.
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [*command, *options, *tests],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, "the tests did not end"
        return process.returncode, output


def why_failed(copy: Path, tests: Sequence[str], timeout_s: float, *options: str) -> str:
    """Return the output of tests that fail twice in a row, don't end, or can't be imported; empty if they pass.

    Twice, because some tests measure time, and fail on a busy machine, too.
    """
    for _ in range(2):
        code, output = run_tests(copy, tests, timeout_s, *options)
        if code == _PASSED:
            return ""
        is_not_imported = code == _NOT_IMPORTED or (code == _NOT_BEGUN and _CONFTEST_NOT_IMPORTED in output)
        if not (code is None or code == _FAILED or is_not_imported):
            raise RuntimeError(f"pytest ended with {code}:\n{output[-5000:]}")
        if code != _FAILED:
            break
    return output


class Tests:
    """Which tests a module's mutants must pass, and how long these take without a mutant."""

    def __init__(self, copy: Path, jobs: int) -> None:
        """Run all tests once: a test that fails without a mutant tells nothing."""
        self._graph = grimp.build_graph(*PACKAGES, cache_dir=None)
        record = WORK / "without-mutants.xml"
        options = (f"--junit-xml={record}", f"--numprocesses={jobs}")
        if why := why_failed(copy, TESTS, _WITHOUT_MUTANTS_S, *options):
            sys.exit(f"tests fail without a mutant:\n{why[-5000:]}")
        self._took_s: defaultdict[str, float] = defaultdict(float)
        for case in ET.parse(record).iter("testcase"):
            file = next(self._files(case.attrib["classname"]))
            self._took_s[file] += float(case.attrib["time"])

    def of(self, module: str) -> Iterator[tuple[list[str], float]]:
        """Yield the test files to run first, then the others, each with the seconds that they may take."""
        distances = distances_of_tests(module, self._graph) | dict.fromkeys(READERS, NEAR)
        for is_near in (True, False):
            files = [file for file, distance in distances.items() if (distance <= NEAR) == is_near]
            if files:
                yield files, PATIENCE_S + PATIENCE * sum(self._took_s[file] for file in files)

    @staticmethod
    def _files(classname: str) -> Iterator[str]:
        """Yield the file of a test: its class name begins with the module, and may end with a class in it."""
        parts = classname.split(".")
        for length in range(len(parts), 0, -1):
            if (ROOT / (file := "/".join(parts[:length]) + ".py")).is_file():
                yield file


# The run.


class Session:
    """The drawn mutants and their results, kept in a file of Cosmic Ray."""

    def __init__(self, sources: Mapping[str, str], seed: int, count: int) -> None:
        key = hashlib.sha256(json.dumps([sources, seed, count], sort_keys=True).encode()).hexdigest()[:16]
        self.mutants = {each.job_id: each for each in draw(sources, seed, count)}
        self._db = WorkDB(str(WORK / f"{key}.sqlite"), WorkDB.Mode.create)
        if not self._db.num_work_items:
            self._db.add_work_items([each.to_work_item() for each in self.mutants.values()])

    def results(self) -> dict[str, WorkResult]:
        """Return what is known, by mutant."""
        return dict(self._db.results)

    def pending(self, *, again: bool) -> list[Mutant]:
        """Return the mutants to try: those without a result and, if `again`, those that survived."""
        known = self.results()
        return [
            mutant
            for job_id, mutant in self.mutants.items()
            if job_id not in known or (again and known[job_id].test_outcome == TestOutcome.SURVIVED)
        ]

    def keep(self, mutant: Mutant, why: str, diff: str) -> None:
        """Record the result of a mutant; `why`: the output of the tests that caught it."""
        outcome = TestOutcome.KILLED if why else TestOutcome.SURVIVED
        result = WorkResult(WorkerOutcome.NORMAL, output=why, test_outcome=outcome, diff=diff)
        self._db.set_result(mutant.job_id, result)


def caught_by(mutant: Mutant, source: str, tests: Tests, copy: Path) -> str:
    """Return the output of the tests that fail; empty if none does."""
    path = path_of(mutant.place.module, copy)
    path.write_text(mutant.code(source), encoding="utf-8")
    asked = tests.of(mutant.place.module)
    try:
        return next(filter(None, (why_failed(copy, files, timeout_s, "-x") for files, timeout_s in asked)), "")
    finally:
        path.write_text(source, encoding="utf-8")


def report(session: Session) -> None:
    """Print how many were caught, by module, and each that was not."""
    results, drawn, caught = session.results(), Counter[str](), Counter[str]()
    for job_id, mutant in session.mutants.items():
        if job_id in results:
            drawn[mutant.place.module] += 1
            caught[mutant.place.module] += results[job_id].test_outcome == TestOutcome.KILLED
    for module in sorted(drawn):
        print(f"{module:45} {caught[module]:3} of {drawn[module]:3}")
    for job_id in session.mutants:
        if job_id in results and results[job_id].test_outcome == TestOutcome.SURVIVED:
            print(f"\nnot caught: {job_id}\n{results[job_id].diff}")
    total = drawn.total()
    print(f"\n{caught.total()} of {total} caught ({100 * caught.total() / max(total, 1):.1f} %)")


def run(session: Session, sources: Mapping[str, str], pending: Sequence[Mutant], jobs: int) -> None:
    """Try mutants, several at a time, and record each result."""
    if not pending:
        return
    copies = Copies(jobs)
    with copies.one() as copy:
        tests = Tests(copy, jobs)

    def judge(mutant: Mutant) -> tuple[Mutant, str, float]:
        started = time.monotonic()
        with copies.one() as copy:
            why = caught_by(mutant, sources[mutant.place.module], tests, copy)
        return mutant, why, time.monotonic() - started

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for number, judged in enumerate(as_completed([pool.submit(judge, mutant) for mutant in pending]), 1):
                mutant, why, took_s = judged.result()
                session.keep(mutant, why, diff_of(mutant, sources[mutant.place.module]))
                word = "caught" if why else "NOT CAUGHT"
                print(f"{number:3} of {len(pending)}  {word:10} {took_s:5.1f} s  {mutant.job_id}", flush=True)
        finally:  # else an error is shown only after all that is pending was tried, and none of it is kept
            pool.shutdown(wait=False, cancel_futures=True)


def main() -> None:
    """Draw mutants, try those without a result, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="how many mutants to draw (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the drawing (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="how many to try at a time (default: 2)")
    parser.add_argument("--again", action="store_true", help="try those that survived again, after tests were added")
    parser.add_argument("--report", action="store_true", help="only print what is known")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    sources = {module: path_of(module).read_text(encoding="utf-8") for module in deciding_modules()}
    session = Session(sources, options.seed, options.count)
    if not options.report:
        run(session, sources, session.pending(again=options.again), options.jobs)
    report(session)


if __name__ == "__main__":
    main()
