"""Settings that a script makes hold for its transforms, with workers as without."""

from __future__ import annotations

import logging
import textwrap
from pathlib import Path

import pytest

import grain_jax as grain
from tests.cases import scripts

MODES = ["fork_imported", "fork_first", "fresh"]

HEAD = """
import decimal, locale, logging, os, sys, time, warnings
import numpy as np
import grain_jax as grain

def ask(look, records=2, **settings):
    class Look(grain.transforms.Map):
        def map(self, x):
            return {"x": x, "seen": look(x)}
    for workers in (0, 2):
        with grain.load(range(records), num_epochs=1, transformations=[Look()],
                        worker_count=workers, **settings) as loader:
            seen = [element["seen"] for element in loader]
        assert len(seen) == records and len(set(map(str, seen))) == 1, seen
        print(workers, seen[0], flush=True)
"""

# What the script sets, what a transform looks at, and what it must see.
SET: dict[str, tuple[str, str, str]] = {
    "directory": ("os.mkdir('d'); os.chdir('d')", "os.path.basename(os.getcwd())", "d"),
    "search path": ("sys.path.append('/no/such')", "sys.path.count('/no/such')", "1"),
    "arguments": ("sys.argv.append('--more')", "sys.argv[1:]", "['--more']"),
    "environment": ("os.environ['ADDED'] = 'a'", "os.environ['ADDED']", "a"),
    "umask": (
        "os.umask(0o027)",
        "os.stat(os.open(f'{x}-{os.getpid()}', os.O_CREAT, 0o666)).st_mode & 0o777",
        str(0o640),
    ),
    "time zone": (
        "os.environ['TZ'] = 'EST+05EDT,M4.1.0,M10.5.0'; time.tzset()",
        "(time.tzname, time.localtime(0).tm_hour)",
        "(('EST', 'EDT'), 19)",
    ),
    "locale": (
        "locale.setlocale(locale.LC_CTYPE, 'C'); locale.setlocale(locale.LC_TIME, 'C.UTF-8')",
        "(locale.setlocale(locale.LC_CTYPE), locale.setlocale(locale.LC_TIME))",
        "('C', 'C.UTF-8')",
    ),
    "recursion": ("sys.setrecursionlimit(5000)", "sys.getrecursionlimit()", "5000"),
    "digits": ("sys.set_int_max_str_digits(700)", "sys.get_int_max_str_digits()", "700"),
    "csv": (
        "import csv; csv.field_size_limit(300_000)",
        "len(next(__import__('csv').reader(['x' * 200_000]))[0])",
        "200000",
    ),
    "decimal": (
        "decimal.getcontext().prec = 5; decimal.getcontext().rounding = decimal.ROUND_UP",
        "decimal.Decimal(1) / 3",
        "0.33334",
    ),
    "decimal traps": (
        "decimal.getcontext().traps[decimal.DivisionByZero] = False",
        "decimal.Decimal(1) / 0",
        "Infinity",
    ),
    "numpy printing": ("np.set_printoptions(precision=3)", "str(np.array([2 / 3]))", "[0.667]"),
    "logging levels": (
        "logging.getLogger().setLevel(15); logging.getLogger('a.b').setLevel('ERROR');"
        "logging.getLogger('c').disabled = True; logging.addLevelName(15, 'LOUD')",
        "(logging.getLogger('d').getEffectiveLevel(), logging.getLogger('a.b').level,"
        " logging.getLogger('c').disabled, logging.getLevelName(15))",
        "(15, 40, True, 'LOUD')",
    ),
    "logging disabled": (
        "logging.disable(logging.ERROR)",
        "logging.getLogger().isEnabledFor(logging.ERROR)",
        "False",
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_setting_is_the_trainers(mode: str, tmp_path: Path, no_process_left: None) -> None:
    made = "\n".join(made for made, _, _ in SET.values())
    seen = ", ".join(f"str({seen})" for _, seen, _ in SET.values())
    text = f"{HEAD}\n{made}\nask(lambda x: [{seen}])\n"
    lines = scripts.output(tmp_path, text, TZ="UTC", GRAIN_JAX_ENGINE_MODE=mode)
    right = [right for _, _, right in SET.values()]
    assert lines == [f"0 {right}", f"2 {right}"]


def test_a_time_zone_that_is_removed(tmp_path: Path) -> None:
    body = """
    os.environ["TZ"] = "EST+05"
    time.tzset()
    del os.environ["TZ"]
    time.tzset()
    ask(lambda x: time.localtime(0).tm_hour)
    """
    text = HEAD + textwrap.dedent(body)
    assert scripts.output(tmp_path, text, TZ="EST+05") == ["0 0", "2 0"]


RAISING = """
def ask_error(look):
    class Look(grain.transforms.Map):
        def map(self, x):
            return look(x)
    for workers in (0, 2):
        with grain.load(range(2), num_epochs=1, transformations=[Look()], worker_count=workers,
                        read_options=grain.ReadOptions(num_threads=0)) as loader:
            try:
                print(workers, list(loader))
            except Exception as error:
                print(workers, type(error).__name__, error, flush=True)
"""

RAISES: dict[str, tuple[str, str, str]] = {
    "numpy": (
        "np.seterr(divide='raise')",
        "np.float64(1) / np.float64(x * 0)",
        "FloatingPointError divide by zero encountered in scalar divide",
    ),
    "a filter after the start": (
        "warnings.simplefilter('error')",
        "warnings.warn('told', UserWarning)",
        "UserWarning told",
    ),
    "a filter by message": (
        "warnings.simplefilter('ignore'); warnings.filterwarnings('error', 'to.d$')",
        "[warnings.warn('other'), warnings.warn('told')]",
        "UserWarning told",
    ),
    "a filter by module": (
        "warnings.simplefilter('ignore'); warnings.filterwarnings('error', module='__main__')",
        "warnings.warn('told')",
        "UserWarning told",
    ),
    "a category of the script": (
        "class Odd(UserWarning): pass\nwarnings.simplefilter('ignore')\n"
        "warnings.simplefilter('error', Odd)",
        "[warnings.warn('other'), warnings.warn('told', Odd)]",
        "Odd told",
    ),
    "a category of a module": (
        "warnings.simplefilter('ignore')\n"
        "warnings.simplefilter('error', np.exceptions.ComplexWarning)",
        "[warnings.warn('other'), np.array([1j]).astype(float)]",
        "ComplexWarning Casting complex values to real discards the imaginary part",
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_what_the_script_makes_an_error_is_one(
    mode: str, tmp_path: Path, no_process_left: None
) -> None:
    text = HEAD + RAISING
    for made, seen, _ in RAISES.values():
        body = f"{made}\nask_error(lambda x: {seen})\n"
        text += "with warnings.catch_warnings(), np.errstate():\n" + textwrap.indent(body, "    ")
    done = scripts.run(tmp_path, text, warn="default", GRAIN_JAX_ENGINE_MODE=mode)
    assert (done.returncode, done.stderr) == (0, "")
    right = [f"{workers} {right}" for _, _, right in RAISES.values() for workers in (0, 2)]
    assert done.stdout.splitlines() == right


def test_a_filter_by_line_and_one_that_ignores(tmp_path: Path) -> None:
    body = """
    def told(x):
        warnings.warn("here")
        return x
    line = told.__code__.co_firstlineno + 1
    warnings.filterwarnings("ignore", lineno=line)
    ask(told)
    """
    with_error = HEAD + textwrap.dedent(body).replace("return x", "return 5")
    assert scripts.output(tmp_path, with_error) == ["0 5", "2 5"]


@pytest.mark.parametrize("mode", MODES)
def test_context_managers_around_the_loop(mode: str, tmp_path: Path) -> None:
    body = """
    class Divide(grain.transforms.Map):
        def map(self, x):
            return str(decimal.Decimal(1) / 7), float(np.float64(1) / np.float64(0 * x))
    for workers in (0, 2):
        for staged in (False, True):
            loader = grain.load([1.0, 2.0], num_epochs=1, transformations=[Divide()],
                                worker_count=workers)
            with np.errstate(divide="ignore"), decimal.localcontext() as context:
                context.prec = 3
                source = grain.prefetch_to_device(loader) if staged else loader
                print(workers, [text for text, _ in source])
                loader.close()
    """
    lines = scripts.output(tmp_path, HEAD + textwrap.dedent(body), GRAIN_JAX_ENGINE_MODE=mode)
    assert lines == [f"{workers} ['0.143', '0.143']" for workers in (0, 0, 2, 2)]


def test_settings_of_reading_threads(tmp_path: Path) -> None:
    body = """
    class Source:
        def __len__(self):
            return 8
        def __getitem__(self, i):
            time.sleep(0.01)
            return float(np.float64(1) / np.float64(0 * i)), float(decimal.Decimal(1) / 7)
    np.seterr(divide="ignore")
    decimal.getcontext().prec = 2
    for workers in (0, 2):
        for threads in (0, 3):
            with grain.load(Source(), num_epochs=1, worker_count=workers,
                            read_options=grain.ReadOptions(num_threads=threads)) as loader:
                print(list(loader) == [(np.inf, 0.14)] * 8)
    """
    assert scripts.output(tmp_path, HEAD + textwrap.dedent(body)) == ["True"] * 4


LOGGING = """
    logging.basicConfig(filename="log", level=logging.INFO,
                        format="%(levelname)s %(name)s %(message)s")
    class Handler(logging.Handler):
        def emit(self, record):
            print("own:", record.getMessage(), flush=True)
    logging.getLogger("own").addHandler(Handler())
    logging.getLogger("own").propagate = False
    logging.getLogger("quiet").addFilter(lambda record: "secret" not in record.getMessage())
    def look(x):
        logging.info("record %d", x)
        logging.debug("never")
        logging.getLogger("own").warning("%s", {"x": x})
        logging.getLogger("quiet").error("secret")
        logging.getLogger("quiet").error("said")
        try:
            1 / 0
        except ZeroDivisionError:
            logging.getLogger("a.b").exception("failed at %d", x)
        return 5
    ask(look, records=3)
"""


@pytest.mark.parametrize("memory", ["memory", "file"])
@pytest.mark.parametrize("mode", MODES)
def test_log_records_reach_the_trainers_handlers_once(
    mode: str, memory: str, tmp_path: Path, no_process_left: None
) -> None:
    environment = {"GRAIN_JAX_ENGINE_MODE": mode, "GRAIN_JAX_ENGINE_MEMORY": memory}
    lines = scripts.output(tmp_path, HEAD + textwrap.dedent(LOGGING), **environment)
    own = [f"own: {{'x': {x}}}" for x in range(3)]
    assert lines[:4] == [*own, "0 5"]
    assert lines[-1] == "2 5"
    assert sorted(lines[4:-1]) == own
    text = (tmp_path / "log").read_text()
    for x in range(3):
        assert text.count(f"INFO root record {x}\n") == 2
        assert text.count(f"ERROR a.b failed at {x}\nTraceback (most recent call last):\n") == 2
    assert text.count("ERROR quiet said\n") == 6
    assert text.count("ZeroDivisionError: division by zero\n") == 6
    assert "secret" not in text
    assert "never" not in text


def test_unconfigured_logging_looks_alike(tmp_path: Path) -> None:
    body = """
    def look(x):
        logging.getLogger("lib").warning("last resort")
        logging.getLogger("lib").info("nowhere")
        return 5
    ask(look, records=1)
    def configure(x):
        logging.warning("configures")
        return 6
    ask(configure, records=1)
    """
    done = scripts.run(tmp_path, HEAD + textwrap.dedent(body))
    assert done.stdout.splitlines() == ["0 5", "2 5", "0 6", "2 6"]
    assert done.stderr.splitlines() == ["last resort"] * 2 + ["WARNING:root:configures"] * 2


def test_handlers_of_a_worker_are_its_own_affair(tmp_path: Path) -> None:
    body = """
    def init(index, count):
        logging.basicConfig(filename=f"worker{index}", level=logging.DEBUG, force=True,
                            format="%(message)s")
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
    def look(x):
        logging.debug("fine %d", x)
        return 5
    ask(look, records=1, worker_init_fn=init)
    """
    lines = scripts.output(tmp_path, HEAD + textwrap.dedent(body))
    assert lines == ["0 5", "fine 0", "2 5"]  # the worker's level lets it through
    written = [(tmp_path / name).read_text() for name in ("worker0", "worker1")]
    assert sorted(written) == ["", "fine 0\n"]


def test_a_flood_of_records_arrives_whole(tmp_path: Path) -> None:
    body = """
    count = [0]
    class Handler(logging.Handler):
        def emit(self, record):
            count[0] += 1
    logging.getLogger().addHandler(Handler())
    def look(x):
        for n in range(200):
            logging.warning("%d of %d %s", n, x, "x" * 100)
        return 5
    ask(look, records=300)
    print(count)
    """
    lines = scripts.output(tmp_path, HEAD + textwrap.dedent(body))
    assert lines == ["0 5", "2 5", "[120000]"]


def test_records_of_a_worker_that_waits_or_dies_arrive(tmp_path: Path) -> None:
    body = """
    import signal, threading
    seen = threading.Event()
    class Handler(logging.Handler):
        def emit(self, record):
            print(record.getMessage(), flush=True)
            seen.set()
    logging.getLogger().addHandler(Handler())
    class Look(grain.transforms.Map):
        def map(self, x):
            if not os.path.exists("seen"):
                logging.error("before it waits")
                with open("seen", "w"):
                    pass
                time.sleep(0.2 if os.path.exists("wait") else 0)
                os.kill(os.getpid(), signal.SIGKILL)
            return x
    with grain.load([7], num_epochs=1, transformations=[Look()], worker_count=1) as loader:
        print(list(loader))
    """
    lines = scripts.output(tmp_path, HEAD + textwrap.dedent(body))
    assert lines == ["before it waits", "[7]"]


@pytest.mark.parametrize("workers", [0, 2])
def test_caplog_sees_what_a_transform_logs(
    workers: int, caplog: pytest.LogCaptureFixture, no_process_left: None
) -> None:
    class Log(grain.transforms.Map):
        def map(self, x: int) -> int:
            logging.getLogger("some.where").info("at %d", x, extra={"place": {"x": x}})
            return x

    with (
        caplog.at_level(logging.INFO, "some"),
        grain.load([1, 2], num_epochs=1, transformations=[Log()], worker_count=workers) as loader,
    ):
        assert [int(x) for x in loader] == [1, 2]
    assert sorted(record.getMessage() for record in caplog.records) == ["at 1", "at 2"]
    assert {record.name for record in caplog.records} == {"some.where"}
    assert sorted(str(record.place) for record in caplog.records) == ["{'x': 1}", "{'x': 2}"]  # type: ignore[attr-defined]
