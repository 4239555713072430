"""Config objects of modules have in workers what the script has set, or an error says so."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.cases import scripts

MODES = ["fork_imported", "fork_first", "fresh"]

CONFIGS = """
    import dataclasses, types

    class Items:                                   # of one dict, as many config classes have it
        def __init__(self, **given):
            self.__dict__["_fields"] = dict(given)
        def __getitem__(self, key):
            return self._fields[key]
        def __setitem__(self, key, value):
            self._fields[key] = value
        def __delitem__(self, key):
            del self._fields[key]
        def __getattr__(self, key):
            try:
                return self.__dict__["_fields"][key]
            except KeyError:
                raise AttributeError(key) from None
        def __setattr__(self, key, value):
            self[key] = value
        def update(self, given):
            self._fields.update(given)

    class Names(dict):                             # of a dict, with its entries as attributes
        __getattr__ = dict.__getitem__
        def __setattr__(self, key, value):
            self[key] = value

    class Own:                                     # with the entries among its attributes
        def __init__(self, **given):
            self.__dict__.update(given)
        def __getitem__(self, key):
            return getattr(self, key)
        def __setitem__(self, key, value):
            setattr(self, key, value)

    class Checked:                                 # with a check as it is set
        def __init__(self, scale):
            object.__setattr__(self, "_values", {"scale": scale})
        def __setattr__(self, key, value):
            if key not in self._values:
                raise AttributeError(key)
            self._values[key] = value
        def __getattr__(self, key):
            return self._values[key]

    @dataclasses.dataclass
    class Fields:
        scale: int = 1

    items, attributes, names, own = Items(scale=1), Items(scale=1), Names(scale=1), Own(scale=1)
    inner = Items(model=Items(scale=1))
    updated, checked, fields = Items(scale=1), Checked(1), Fields()
    plain, listed = types.SimpleNamespace(scale=1), Items(all=[Names(scale=1)])

    def by_items(x): return x * items["scale"]
    def by_attributes(x): return x * attributes.scale
    def by_names(x): return x * names.scale
    def by_own(x): return x * own["scale"]
    def by_inner(x): return x * inner.model.scale
    def by_updated(x): return x * updated.scale
    def by_checked(x): return x * checked.scale
    def by_fields(x): return x * fields.scale
    def by_plain(x): return x * plain.scale
    def by_listed(x): return x * listed["all"][0].scale
    def beside_records(x):                         # code that assigns to things of its own
        record = {"x": x}
        record["y"] = record["x"] * items["scale"]
        record.update(z=0)
        return record["y"]
    """

# Each function, with what the script does, and where the error says that 6 is here and 1 there.
CHANGES = {
    "by_items": ("configs.items['scale'] = 6", "configs.items._fields['scale']"),
    "by_attributes": ("configs.attributes.scale = 6", "configs.attributes._fields['scale']"),
    "by_names": ("configs.names.scale = 6", "configs.names['scale']"),
    "by_own": ("configs.own['scale'] = 6", "configs.own.scale"),
    "by_inner": (
        "configs.inner.model.scale = 6",
        "configs.inner._fields['model']._fields['scale']",
    ),
    "by_updated": ("configs.updated.update({'scale': 6})", "configs.updated._fields['scale']"),
    "by_checked": ("configs.checked.scale = 6", "configs.checked._values['scale']"),
    "by_fields": ("configs.fields.scale = 6", "configs.fields.scale"),
    "by_plain": ("configs.plain.scale = 6", "configs.plain.scale"),
    "by_listed": (
        "configs.listed['all'][0].scale = 6",
        "configs.listed._fields['all'][0]['scale']",
    ),
    "beside_records": ("configs.items['scale'] = 6", "configs.items._fields['scale']"),
}

TRY = """
    import grain_jax as grain

    idle = grain.load([0], worker_count=1)
    iter(idle)  # what all loaders share stays, which makes each start in milliseconds

    def tried(function, workers):
        try:
            options = grain.MultiprocessingOptions(num_workers=workers)
            mapped = grain.MapDataset.range(1, 4).map(function)
            return list(mapped.to_iter_dataset().mp_prefetch(options))
        except grain.errors.DriftError as error:
            return str(error).splitlines()[1].strip()
    """


def script(*parts: str) -> str:
    return "\n".join(textwrap.dedent(part) for part in parts)


def compared(folder: Path, changes: dict[str, tuple[str, str]], mode: str, **files: str) -> None:
    """Runs functions of the first file: before the script changes anything, and after."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    (module, *_) = files
    body = f"""
    import {", ".join(files)}
    for name, change in {[(name, change) for name, (change, _) in changes.items()]}:
        function = getattr({module}, name)
        print(name, tried(function, 0), tried(function, 2))
        exec(change)
        print(name, tried(function, 0), tried(function, 2))
        if name == 'by_items':
            exec(change.replace('6', '1'))
    """
    lines = scripts.output(folder, script(TRY, body), 150, GRAIN_JAX_ENGINE_MODE=mode)
    expected = []
    for name, (_, where) in changes.items():
        expected.append(f"{name} [1, 2, 3] [1, 2, 3]")
        expected.append(f"{name} [6, 12, 18] {where} is 6 here, and 1 in a worker")
    assert lines == expected


@pytest.mark.parametrize("mode", MODES)
def test_a_config_object_that_the_script_changes_is_an_error(
    mode: str, tmp_path: Path, no_process_left: None
) -> None:
    compared(tmp_path, CHANGES, mode, configs=CONFIGS)


SETTINGS = "SCALE = OTHER = 1"
MODULES = """
    import json
    import settings

    SETTINGS, codec = settings, json
    modules = {"settings": settings}

    class Holder:
        def __init__(self):
            self.settings = settings

    holder = Holder()

    def by_variable(x): return x * SETTINGS.SCALE
    def by_container(x): return x * modules["settings"].SCALE
    def by_object(x): return x * holder.settings.SCALE
    """


@pytest.mark.parametrize("mode", MODES)
def test_a_module_that_code_holds_is_looked_into(
    mode: str, tmp_path: Path, no_process_left: None
) -> None:
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "modules.py").write_text(textwrap.dedent(MODULES))
    body = """
    import modules, settings

    held = {"settings": settings}

    class Scaled(grain.transforms.Map):
        def __init__(self):
            self.settings = settings
        def map(self, x):
            return x * self.settings.SCALE

    def by_script(x):
        return x * held["settings"].SCALE

    settings.OTHER = 6  # which no code reads
    functions = [modules.by_variable, modules.by_container, modules.by_object, by_script, Scaled()]
    for function in functions:
        print(tried(function, 0), tried(function, 2))
    settings.SCALE = 6
    for function in functions:
        print(tried(function, 0), tried(function, 2))
    """
    assert scripts.output(tmp_path, script(TRY, body), GRAIN_JAX_ENGINE_MODE=mode) == [
        *["[1, 2, 3] [1, 2, 3]"] * 5,
        *["[6, 12, 18] settings.SCALE is 6 here, and 1 in a worker"] * 5,
    ]


def test_another_module_in_a_variable_is_an_error(tmp_path: Path, no_process_left: None) -> None:
    (tmp_path / "codecs_used.py").write_text(
        "import json\ncodec = json\ndef by_codec(x): return type(codec.dumps(x)).__name__\n"
    )
    body = """
    import pickle
    import codecs_used
    print(tried(codecs_used.by_codec, 2))
    codecs_used.codec = pickle
    print(tried(codecs_used.by_codec, 0), tried(codecs_used.by_codec, 2))
    """
    assert scripts.output(tmp_path, script(TRY, body)) == [
        "['str', 'str', 'str']",
        "['bytes', 'bytes', 'bytes'] "
        "codecs_used.codec is module pickle here, and module json in a worker",
    ]


LAZY = """
    import functools

    class Single:                                  # made at its first use
        _one = None
        def __init__(self):
            self.scale = 1
        @classmethod
        def instance(cls):
            if cls._one is None:
                cls._one = cls()
            return cls._one

    class Plain(Single):                           # with the value of its class
        _one = None
        scale = 1
        def __init__(self):
            pass

    class Ready(Single):                           # made as the module is imported
        _one = None

    class New:
        _one = None
        def __new__(cls):
            if cls._one is None:
                cls._one = super().__new__(cls)
                cls._one.scale = 1
            return cls._one

    class Meta(type):                              # of each of its classes one object
        _instances = {}
        def __call__(cls, *args):
            if cls not in cls._instances:
                cls._instances[cls] = super().__call__(*args)
            return cls._instances[cls]

    class Of(metaclass=Meta):
        def __init__(self):
            self.scale = 1

    Ready.instance()
    _config = None

    def in_global():
        global _config
        if _config is None:
            _config = {"scale": 1}
        return _config

    @functools.cache
    def in_cache():
        return {"scale": 1}

    @functools.lru_cache(maxsize=4)
    def in_small_cache(name="default"):
        return {"scale": 1}

    @functools.cache
    def ready():
        return {"scale": 1}

    ready()

    def by_single(x): return x * Single.instance().scale
    def by_plain(x): return x * Plain.instance().scale
    def by_ready(x): return x * Ready.instance().scale
    def by_new(x): return x * New().scale
    def by_metaclass(x): return x * Of().scale
    def by_global(x): return x * in_global()["scale"]
    def by_cache(x): return x * in_cache()["scale"]
    def by_small_cache(x): return x * in_small_cache()["scale"]
    def by_ready_cache(x): return x * ready()["scale"]
    """

LAZY_CHANGES = {
    "by_single": ("lazy.Single.instance().scale = 6", "lazy.Single._one.scale"),
    "by_plain": ("lazy.Plain.instance().scale = 6", "lazy.Plain._one.scale"),
    "by_ready": ("lazy.Ready.instance().scale = 6", "lazy.Ready._one.scale"),
    "by_new": ("lazy.New().scale = 6", "lazy.New._one.scale"),
    "by_metaclass": ("lazy.Of().scale = 6", "lazy.Meta._instances[class lazy.Of].scale"),
    "by_global": ("lazy.in_global()['scale'] = 6", "lazy._config['scale']"),
    "by_cache": ("lazy.in_cache()['scale'] = 6", "lazy.in_cache()['scale']"),
    "by_small_cache": ("lazy.in_small_cache()['scale'] = 6", "lazy.in_small_cache()['scale']"),
    "by_ready_cache": ("lazy.ready()['scale'] = 6", "lazy.ready()['scale']"),
}


@pytest.mark.parametrize("mode", MODES)
def test_what_is_made_at_its_first_use_and_changed_is_an_error(
    mode: str, tmp_path: Path, no_process_left: None
) -> None:
    compared(tmp_path, LAZY_CHANGES, mode, lazy=LAZY)


FILLED = """
    class Vocab:                                   # filled by methods that no step calls
        _one = None
        def __init__(self):
            self.ids = {}
        @classmethod
        def get(cls):
            if cls._one is None:
                cls._one = cls()
            return cls._one
        def add(self, word):
            return self.ids.setdefault(word, len(self.ids))
        def lookup(self, word):
            return self.ids.get(word, -1)

    class Labels:
        names = []
        @classmethod
        def add(cls, name):
            if name not in cls.names:
                cls.names.append(name)
        @classmethod
        def place(cls, name):
            return cls.names.index(name) if name in cls.names else -1

    class Stats:
        def __init__(self):
            self.count, self.total = 0, 0
        def update(self, x):
            self.count += 1
            self.total += x
        def mean(self):
            return self.total // max(self.count, 1)

    class Counter:                                 # counts in a step: left alone
        seen = 0
        def count(self):
            self.seen += 1
            return self.seen

    STATS, COUNTER, NUMBERS = Stats(), Counter(), {}

    def number(word):                              # adds in a step what the script has not
        if word not in NUMBERS:
            NUMBERS[word] = len(NUMBERS)
        return NUMBERS[word]

    def by_number(x): return x * (5 + number("six"))

    def by_vocabulary(x): return x * (6 + Vocab.get().lookup("six"))
    def by_labels(x): return x * (6 + Labels.place("six"))
    def by_statistic(x): return x * STATS.mean()
    def by_counter(x): return x * min(COUNTER.count(), 1)
    """

FILLS = {
    "by_vocabulary": ("lazy.Vocab.get().add('six')", "lazy.Vocab._one.ids['six']"),
    "by_labels": ("lazy.Labels.add('six')", "lazy.Labels.names[0]"),
    "by_number": ("lazy.number('five'), lazy.number('six')", "lazy.NUMBERS['five']"),
    "by_statistic": ("lazy.STATS.update(6)", "lazy.STATS.count"),
}


def test_what_the_script_fills_by_methods_is_an_error(
    tmp_path: Path, no_process_left: None
) -> None:
    (tmp_path / "lazy.py").write_text(textwrap.dedent(FILLED))
    body = f"""
    import lazy
    for name, change in {[(name, change) for name, (change, _) in FILLS.items()]}:
        exec(change)
        print(tried(getattr(lazy, name), 0))
        print(tried(getattr(lazy, name), 2))
    lazy.COUNTER.count()
    print(tried(lazy.by_counter, 2))
    """
    *lines, counted = scripts.output(tmp_path, script(TRY, body), 150)
    assert lines[::2] == ["[6, 12, 18]"] * 4
    for line, (_, where) in zip(lines[1::2], FILLS.values(), strict=True):
        assert line.startswith(where)
    assert counted == "[1, 2, 3]"
