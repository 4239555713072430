"""Names that memory files have on this machine, in a folder of the user's own.

The folder has mode 0700, so that nobody else can put anything there, and no link in it is followed.
A name is a small file that says which descriptor of which process is meant, and which file that is;
where there are no nameless files, it is the file itself.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import stat
import tempfile

from grain_jax._values.processes import is_gone

__all__ = ["create", "file", "find", "made_up", "path_of", "remove"]

_POINTS = b"grainjx@"
_LONGEST = 512  # bytes of a file that points to another

# The names to remove at exit, each with the process that made it.
_made: dict[str, int] = {}


def path_of(name: str) -> str:
    """Returns where a name stands."""
    return os.path.join(tempfile.gettempdir(), f"grain_jax-{os.geteuid()}", name)


def made_up() -> str:
    """Returns a name that nobody else has."""
    return f"{_prefix()}{os.getpid()}_{secrets.token_hex(8)}"


def file() -> tuple[int, str | None]:
    """Returns a new file, and its path if it has one, in the folder of names."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("grain_jax")
        if os.path.exists(f"/proc/self/fd/{descriptor}"):
            return descriptor, None
        os.close(descriptor)
    name = made_up()
    folder = _open_folder(os.path.dirname(path_of(name)), make=True)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=folder), path_of(name)
    finally:
        os.close(folder)


def create(path: str, descriptor: int, where: str | None) -> bool:
    """Gives a file a name; false if the name is another's.

    Args:
        path: what `path_of` returned.
        descriptor: of a file that stays open as long as the name is to be found.
        where: its path, if it has one, which it loses.
    """
    folder = _open_folder(os.path.dirname(path), make=True)
    try:
        _sweep(folder)
        if where is None:
            where = os.path.join(os.path.dirname(path), made_up())
            _point(folder, os.path.basename(where), descriptor)
        name, former = os.path.basename(path), os.path.basename(where)
        try:
            for _ in range(2):
                try:
                    os.link(former, name, src_dir_fd=folder, dst_dir_fd=folder)
                    break
                except FileExistsError:
                    found = find(path)
                    if found is not None:
                        os.close(found)
                        return False
                    os.unlink(name, dir_fd=folder)  # its creator was killed, or it is no name
            else:
                return False
        finally:
            os.unlink(former, dir_fd=folder)
    finally:
        os.close(folder)
    _made[path] = os.getpid()
    return True


def _point(folder: int, name: str, descriptor: int) -> None:
    status = os.fstat(descriptor)
    text = json.dumps([os.getpid(), descriptor, status.st_dev, status.st_ino]).encode()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(_POINTS + text)


def find(path: str) -> int | None:
    """Opens the file that has a name, for reading; None if there is none any more.

    Raises:
        PermissionError: if the folder of names is not this user's alone.
    """
    try:
        folder = _open_folder(os.path.dirname(path), make=False)
    except FileNotFoundError:
        return None
    try:
        descriptor = _opened(os.path.basename(path), folder)
    finally:
        os.close(folder)
    if descriptor is None:
        return None
    start = os.pread(descriptor, _LONGEST, 0)
    if not start.startswith(_POINTS):
        return descriptor
    os.close(descriptor)
    try:
        pid, number, *expected = map(int, json.loads(start[len(_POINTS) :]))
    except (ValueError, TypeError):
        return None
    found = _opened(f"/proc/{pid}/fd/{number}", None)
    if found is None:
        return None
    status = os.fstat(found)
    # The number of a process that has ended may be another's by now.
    if [status.st_dev, status.st_ino] != expected:
        os.close(found)
        return None
    return found


def _opened(path: str, folder: int | None) -> int | None:
    """Opens a plain file of this user's, in a folder without following a link."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    if folder is not None:
        flags |= os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, dir_fd=folder)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode):
        return descriptor
    os.close(descriptor)
    return None


def remove(path: str) -> None:
    """Takes a name away; does nothing if it is gone."""
    _made.pop(path, None)
    with contextlib.suppress(OSError):
        folder = _open_folder(os.path.dirname(path), make=False)
        try:
            os.unlink(os.path.basename(path), dir_fd=folder)
        finally:
            os.close(folder)


def _open_folder(path: str, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(path, "no folder, or a link to one") from error
    status = os.fstat(folder)
    if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
        return folder
    os.close(folder)
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    raise _refused(path, f"a folder of user {status.st_uid} with mode {mode}")


def _refused(path: str, what: str) -> PermissionError:
    return PermissionError(
        f"{path} is {what}. Names of shared memory stand in a folder of one's own (user "
        f"{os.geteuid()}) with mode 0700, in which nobody else can put anything: remove it, or set "
        "TMPDIR to another directory."
    )


def _prefix() -> str:
    """How made-up names begin: numbers of processes mean something in their namespace only."""
    namespace = 0
    with contextlib.suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"grain_{namespace}_"


def _sweep(folder: int) -> None:
    """Removes made-up names whose creators are gone.

    One of the user's own is removed when somebody creates that name again.
    """
    prefix = _prefix()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            process = name[len(prefix) :].partition("_")[0]
            if name.startswith(prefix) and process.isdecimal() and is_gone(int(process)):
                os.unlink(name, dir_fd=folder)


@atexit.register
def _remove_all() -> None:
    for path, process in list(_made.items()):
        if process == os.getpid():  # a fork of the creator leaves them alone
            remove(path)
