"""Sources with a position are read right, however slow their storage is."""

from __future__ import annotations

import pathlib

import pytest

from tests.cases import scripts

_SOURCES = """
    import io, sqlite3, sys, tarfile, time
    import numpy as np
    import grain_jax as grain

    N = 100
    texts = [f"line {i}\\n" for i in range(N)]
    with open("lines.txt", "w") as file:
        file.writelines(texts)
    offsets = np.cumsum([0] + [len(text) for text in texts])[:-1]
    with tarfile.open("members.tar", "w") as tar:
        for i, text in enumerate(texts):
            info = tarfile.TarInfo(str(i))
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    table = sqlite3.connect("rows.db")
    table.execute("create table t(id integer primary key, x text)")
    table.executemany("insert into t values(?, ?)", enumerate(texts))
    table.commit()
    table.close()

    class Lines:
        def __init__(self): self.file = None
        def __len__(self): return N
        def __getitem__(self, i):
            if self.file is None: self.file = open("lines.txt", "rb")
            self.file.seek(offsets[i])
            time.sleep(0.001)
            return self.file.readline().decode()

    class Held(Lines):
        def __init__(self): self.file = open("lines.txt", "rb")
        def __reduce__(self): return Held, ()

    class Members(Lines):
        def __getitem__(self, i):
            if self.file is None: self.file = tarfile.open("members.tar")
            member = self.file.extractfile(str(i))
            time.sleep(0.001)
            return member.read().decode()

    class Rows(Lines):
        def __getitem__(self, i):
            if self.file is None: self.file = sqlite3.connect("rows.db")
            time.sleep(0.001)
            return self.file.execute("select x from t where id=?", (i,)).fetchone()[0]
"""


@pytest.mark.parametrize("kind", ["Lines", "Held", "Members", "Rows"])
@pytest.mark.parametrize("workers", [0, 2])
def test_slow_reads_of_one_file(
    tmp_path: pathlib.Path, kind: str, workers: int, no_process_left: None
) -> None:
    body = f"""
    import warnings
    warnings.simplefilter("ignore", ResourceWarning)  # the sources leave their files open
    for make in (
        lambda: grain.load({kind}(), num_epochs=2, worker_count={workers}),
        lambda: grain.load({kind}(), num_epochs=2, worker_count={workers}, batch_size=10),
    ):
        found = [text for part in make() for text in ([part] if isinstance(part, str) else part)]
        print(found == 2 * texts)
    """
    assert scripts.output(tmp_path, _SOURCES + body) == ["True", "True"]
