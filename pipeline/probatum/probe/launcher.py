"""The launcher is the first process of every sandbox: it starts the command, watches it, and alone says how it ended.

Standard library only and one file, so that an engine can ship it anywhere. Two front ends, one body:

    launcher.py fd CONFIG RESULT           configuration and result on two descriptors (bubblewrap)
    launcher.py folder HOME                a socket and a file in a folder that only root may enter; starts as root and drops
                                           to a uid (image builds)

The configuration is the length of its fields (8 bytes, big endian), ``key=value`` fields that each end with NUL, then the
command's stdin. The result is ``MAGIC``, the length of a JSON header, the header, and the bytes whose sizes it lists.

What runs below the launcher is hostile and may share its uid: it must not trace or read it, or hold its descriptors.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import select
import stat
import sys
import time

# ``signal`` imports enum, which would cost every stage 4 ms; its C half, always loaded, has all that is needed here.
signal = sys.modules["_signal"]

MAGIC = b"PROBATUM-RESULT-1\n"
KEEP = 1 << 20
"""How much of the end of stdout and of stderr is kept, in bytes."""

_TICK = 0.02
_PAGE = resource.getpagesize()
_DUMPABLE_GET, _DUMPABLE_SET, _SECCOMP, _BOUND_DROP, _NO_NEW_PRIVS = 3, 4, 22, 24, 38
_ZERO = ctypes.c_ulong(0)
_SMALL = 1 << 20
_MOST_FILES = 1 << 20
_FEW_SOCKETS, _SOCKET_BUFFER = 256, 425984


class Config:
    """What to run and under which limits, as the engine wrote it."""

    def __init__(self, fields: dict[str, list[bytes]]) -> None:
        self.nonce = fields["nonce"][0]
        self.argv = fields.get("argv", [])
        self.env = dict(item.split(b"=", 1) for item in fields.get("env", []))
        self.cwd = fields["cwd"][0]
        self.writable = fields.get("writable", [])
        self.outputs = fields.get("output-file", [])
        self.stdin_size = int(fields["stdin-size"][0])
        self.stdin = b""
        self.wall, self.memory, self.processes, self.file, self.disk, self.output, self.report = (
            int(fields[name][0]) for name in ("wall", "memory", "processes", "file", "disk", "output", "report")
        )
        self.nproc = fields["nproc"] == [b"1"]
        # Only where the launcher is root and nobody has made the sandbox ready for a dropped uid.
        self.uid = int(fields.get("uid", [b"0"])[0])
        self.closed, self.files = fields.get("closed", []), fields.get("carried", [])
        self.filter = bytes.fromhex(fields.get("filter", [b""])[0].decode("ascii"))


def read_config(descriptor: int) -> Config:
    """Read exactly one configuration. The writer keeps its end open: when that closes, the gate is gone."""
    fields: dict[str, list[bytes]] = {}
    for item in exactly(descriptor, int.from_bytes(exactly(descriptor, 8), "big")).split(b"\0")[:-1]:
        key, value = item.split(b"=", 1)
        fields.setdefault(key.decode("ascii"), []).append(value)
    config = Config(fields)
    config.stdin = config.nonce + b"\n" + exactly(descriptor, config.stdin_size)
    return config


def exactly(descriptor: int, size: int) -> bytes:
    """``size`` bytes, or EOFError."""
    data = bytearray()
    while len(data) < size:
        piece = os.read(descriptor, min(1 << 20, size - len(data)))
        if not piece:
            raise EOFError("the configuration ends early")
        data += piece
    return bytes(data)


def harden() -> None:
    """Nobody of our uid may trace us, read our memory or take our descriptors; no child gains privileges."""
    libc = ctypes.CDLL(None)
    zero = ctypes.c_ulong(0)
    libc.prctl(_DUMPABLE_SET, zero, zero, zero, zero)
    libc.prctl(_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero)
    if libc.prctl(_DUMPABLE_GET, zero, zero, zero, zero) != 0:
        raise OSError("the launcher stays dumpable")
    # Python answers SIGINT with an exception. With the default disposition no signal from inside reaches pid 1.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_char_p)]


def prepare(config: Config) -> None:
    """What bubblewrap does elsewhere: folders that are writable for the uid to come, and folders that are not."""
    import binascii

    for folder in config.writable:
        os.chmod(folder, 0o1777)
    for folder in config.closed:
        os.chmod(folder, 0o755)
    for item in config.files:
        path, _, text = item.partition(b"\n")
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        write(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), binascii.a2b_base64(text))
    os.mkdir("/tmp/home", 0o700)
    os.chown("/tmp/home", config.uid, config.uid)


def first_process() -> int:
    """When this process started, unix microseconds, rounded up to the kernel's clock tick."""
    ticks = int(read_small("/proc/self/stat").rsplit(b")", 1)[1].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - (ticks + 1) / os.sysconf("SC_CLK_TCK")
    return int((time.time() - max(age, 0.0)) * 1_000_000)


def start(config: Config, streams: tuple[int, ...]) -> tuple[int, int]:
    """Fork the command; (pid, 0), or (0, errno) when it could not be executed."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child(config, streams)
        except OSError as error:
            os.write(tell, b"%d" % (error.errno or 1))
        except BaseException:
            os.write(tell, b"1")
        finally:
            os._exit(127)
    os.close(tell)
    said = os.read(told, 16)
    os.close(told)
    if said:
        os.waitpid(pid, 0)
        return 0, int(said)
    return pid, 0


def child(config: Config, streams: tuple[int, ...]) -> None:
    """Between fork and exec: own session, limits, streams on 0 to 3; all else closes on exec."""
    os.setsid()
    # Every source goes far above 3 first, or one dup2 could overwrite the next one's source.
    for target, source in enumerate([fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 64) for stream in streams]):
        os.dup2(source, target, inheritable=True)
    for number in sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    # One byte of core is the value for which the kernel starts no dump helper on the host.
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (config.file, config.file))
    # What the host may have granted its user for real-time work would let a loop in here stall the machine.
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
    resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
    ceiling = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = 4096 if ceiling == resource.RLIM_INFINITY else min(4096, ceiling)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, files), files))
    if config.nproc:
        # The launcher counts too, and one more lets the watch see that the limit was passed.
        resource.setrlimit(resource.RLIMIT_NPROC, (config.processes + 2, config.processes + 2))
    if config.uid:
        libc = ctypes.CDLL(None)
        for capability in range(64):
            libc.prctl(_BOUND_DROP, ctypes.c_ulong(capability), _ZERO, _ZERO, _ZERO)
        os.setgroups([])
        os.setresgid(config.uid, config.uid, config.uid)
        os.setresuid(config.uid, config.uid, config.uid)
    os.chdir(config.cwd)
    if config.filter:
        program = Filter(len(config.filter) // 8, config.filter)
        if ctypes.CDLL(None).prctl(_SECCOMP, ctypes.c_ulong(2), ctypes.byref(program), _ZERO, _ZERO) != 0:
            raise OSError("the system call filter is refused")
    os.execvpe(config.argv[0], config.argv, config.env)


class Run:
    """One command from its start to the last process of the sandbox."""

    def __init__(self, config: Config, lifeline: int) -> None:
        self.config, self.lifeline = config, lifeline
        self.pid = 0
        self.status: int | None = None
        self.end: tuple[str, int, str] | None = None
        self.report, self.stdout, self.stderr = bytearray(), bytearray(), bytearray()
        self.said = {"report": 0, "output": 0}
        self.streams: dict[int, tuple[bytearray, str]] = {}

    def over(self, limit: str) -> None:
        """The first limit that was passed names the end."""
        if self.end is None:
            self.end = ("over", 0, limit)

    def go(self) -> tuple[str, int, str]:
        """Run to the end; afterwards no other process lives in this pid namespace."""
        (in_r, in_w), (out_r, out_w), (err_r, err_w), (rep_r, rep_w) = (os.pipe() for _ in range(4))
        deadline = time.monotonic() + self.config.wall
        self.pid, problem = start(self.config, (in_r, out_w, err_w, rep_w))
        for descriptor in (in_r, out_w, err_w, rep_w):
            os.close(descriptor)
        if problem:
            return ("setup", problem, "")
        self.streams = {out_r: (self.stdout, "output"), err_r: (self.stderr, "output"), rep_r: (self.report, "report")}
        try:
            self.supervise(in_w, deadline)
            self.measure(ended=1)  # what the command left running behind it still counts
        finally:
            self.kill_all()
        for descriptor in self.streams:
            while self.end is None and self.drain(descriptor):
                pass
        if self.end is None:
            self.measure_files()
        return self.end or said_by(self.status)

    def supervise(self, stdin: int, deadline: float) -> None:
        """Feed and read until the command itself ends or a limit is passed; what its children hold open is not waited for."""
        poll = select.poll()
        poll.register(os.pidfd_open(self.pid), select.POLLIN)
        if self.lifeline >= 0:
            poll.register(self.lifeline, select.POLLIN)
        left = memoryview(self.config.stdin)
        os.set_blocking(stdin, False)
        poll.register(stdin, select.POLLOUT)
        for descriptor in self.streams:
            os.set_blocking(descriptor, False)
            poll.register(descriptor, select.POLLIN)
        look = time.monotonic() + _TICK
        while not self.reap() and self.end is None:
            now = time.monotonic()
            if now >= deadline:
                self.over("wall")
            elif now >= look:
                self.measure()
                # A watch that looks at a thousand processes must not become the load itself.
                look = time.monotonic() + max(_TICK, 10 * (time.monotonic() - now))
            else:
                for descriptor, _ in poll.poll(1 + int(1000 * (min(look, deadline) - now))):
                    if descriptor == self.lifeline:
                        self.kill_all()
                        os._exit(1)
                    elif descriptor in self.streams:
                        if self.drain(descriptor) is None:
                            poll.unregister(descriptor)
                    elif descriptor == stdin:
                        left = feed(stdin, left)
                        if not left:
                            poll.unregister(stdin)
                            os.close(stdin)

    def reap(self) -> bool:
        """Collect every process that has ended; true once the command itself is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid = 0
            if pid == self.pid and self.status is None:  # its number may be given to another later
                self.status = status
            if pid == 0:
                return self.status is not None

    def drain(self, descriptor: int) -> int | None:
        """Read once: how much came, 0 where nothing is there, None at the end. Past its cap a stream ends the run."""
        kept, limit = self.streams[descriptor]
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return 0
        self.said[limit] += len(data)
        if self.said[limit] > getattr(self.config, limit):
            self.over(limit)
        elif limit == "report" or len(kept) <= KEEP:
            kept += data
        else:
            kept[:] = kept[len(data) - KEEP :] + data
        return len(data) or None

    def measure(self, ended: int = 0) -> None:
        """Look at processes, memory and disk from outside the command; name the first limit that is passed."""
        tasks, resident, pids, me = ended, 0, [], str(os.getpid())
        for name in os.listdir("/proc"):
            if name.isdigit() and name != me:
                line = read_small("/proc/" + name + "/stat").rsplit(b")", 1)[-1].split()
                if len(line) > 21:
                    tasks += int(line[17])
                    resident += int(line[21]) * _PAGE
                    pids.append(name)
        if tasks > self.config.processes:
            self.over("processes")
        limit = self.config.memory - segments() - sockets()
        if resident > limit and self.proportional(pids) > limit:
            self.over("memory")
        used = inodes = 0
        for folder in self.config.writable:
            state = os.statvfs(folder)
            used += (state.f_blocks - state.f_bfree) * state.f_frsize
            inodes += state.f_files - state.f_ffree
        if used > self.config.disk or inodes > max(1 << 14, self.config.disk >> 12):
            self.over("disk")

    def proportional(self, pids: list[str]) -> int:
        """What these processes share of memory; a root without capabilities over others looks as the command's own uid."""
        libc = ctypes.CDLL(None) if self.config.uid else None
        try:
            if libc is not None:
                libc.setfsgid(self.config.uid)
                libc.setfsuid(self.config.uid)
            return sum(map(proportional, pids))
        finally:
            if libc is not None:
                libc.setfsuid(0)
                libc.setfsgid(0)

    def measure_files(self) -> None:
        """A file as large as the limit was stopped there: Python ignores SIGXFSZ, so the exit status does not tell."""
        waiting, seen = list(self.config.writable), 0
        while waiting and seen < _MOST_FILES and self.end is None:
            try:
                with os.scandir(waiting.pop()) as entries:
                    for entry in entries:
                        seen += 1
                        state = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(state.st_mode):
                            waiting.append(entry.path)
                        elif stat.S_ISREG(state.st_mode) and state.st_size >= self.config.file:
                            self.over("file")
            except OSError:
                continue  # closed or too deep to name: only the naming of the end suffers

    def kill_all(self) -> None:
        """Every other process of the pid namespace dies, whatever session or group it hides in."""
        until = time.monotonic() + 5
        while time.monotonic() < until:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                pass
            try:
                while True:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                    if pid == self.pid and self.status is None:
                        self.status = status
                    if pid == 0:
                        time.sleep(0.001)
                        break
            except ChildProcessError:
                return


def said_by(status: int | None) -> tuple[str, int, str]:
    """What waitpid says: exit(137) is an exit, and only a signal is a signal."""
    if status is None:
        raise OSError("the command ended without a status")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return ("over", 0, "file") if number == signal.SIGXFSZ else ("signalled", number, "")
    return ("exited", os.WEXITSTATUS(status), "")


def feed(descriptor: int, data: memoryview) -> memoryview:
    """Write what fits; what is left. A reader that went away is served."""
    try:
        return data[os.write(descriptor, data[: 1 << 16]) :]
    except BlockingIOError:
        return data
    except OSError:
        return data[:0]


def read_small(path: str) -> bytes:
    """A file of /proc, b"" when its process is gone or closed to us."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def proportional(pid: str) -> int:
    """A process's share of the memory it maps, in bytes; all of it where the process hides its map."""
    for line in read_small("/proc/" + pid + "/smaps_rollup").split(b"\n"):
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) << 10
    fields = read_small("/proc/" + pid + "/stat").rsplit(b")", 1)[-1].split()
    return int(fields[21]) * _PAGE if len(fields) > 21 else 0


def segments() -> int:
    """Bytes in System V segments that no process maps."""
    rows = [line.split() for line in read_small("/proc/sysvipc/shm").split(b"\n")[1:]]
    return sum(int(row[14]) + int(row[15]) for row in rows if len(row) > 15 and row[6] == b"0")


def sockets() -> int:
    """What the buffers of many sockets may hold, in bytes: the kernel keeps it in no process's account."""
    words = read_small("/proc/net/sockstat").split()
    used = int(words[2]) if words[:2] == [b"sockets:", b"used"] else 0
    return max(0, used - _FEW_SOCKETS) * _SOCKET_BUFFER


def collect(config: Config) -> list[tuple[int, bytes]]:
    """The declared outputs that are regular files: (index, bytes). No link is followed, no folder on the way either."""
    found, left = [], config.disk
    for index, name in enumerate(config.outputs):
        try:
            *folders, last = name.split(b"/")
            where = os.open(b"/out", os.O_PATH | os.O_DIRECTORY)
            for folder in folders:
                where = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=where)
            file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=where)
            state = os.fstat(file)
            if stat.S_ISREG(state.st_mode) and state.st_size <= min(config.file, left):
                found.append((index, exactly(file, state.st_size)))
                left -= state.st_size
        except (OSError, EOFError):
            continue  # not there, or not a plain file: then it was not delivered
    return found


def result(config: Config, end: tuple[str, int, str], began: int, parts: tuple[bytes, ...], problem: str = "") -> bytes:
    """The framed result. Written by hand: the json module would cost every stage 8 ms."""
    outputs = collect(config) if end[0] == "exited" else []
    plain = "".join(char if char.isalnum() or char in " .,:/_-'[]()" else "?" for char in ascii(problem))
    header = (
        f'{{"nonce":"{config.nonce.decode("ascii")}","how":"{end[0]}","code":{end[1]},"limit":"{end[2]}",'
        f'"first_process":{began},"problem":"{plain}","sizes":{[len(part) for part in parts]},'
        f'"outputs":{[[index, len(data)] for index, data in outputs]}}}'
    ).encode("ascii")
    return b"".join([MAGIC, len(header).to_bytes(8, "big"), header, *parts, *(data for _, data in outputs)])


def serve(config: Config, lifeline: int) -> bytes:
    """Run the configured command and frame what came; trouble of our own is "failed", never an exit status."""
    began = 0
    try:
        if os.getpid() != 1:
            raise OSError("not the first process of a pid namespace")
        began, run = first_process(), Run(config, lifeline)
        end = run.go() if config.argv else ("exited", 0, "")
        return result(config, end, began, (bytes(run.report), bytes(run.stdout), bytes(run.stderr)))
    except Exception as error:
        return result(config, ("failed", 0, ""), began, (b"", b"", b""), f"{type(error).__name__}: {error}")


def main(arguments: list[str]) -> None:
    """Choose the front end."""
    harden()
    if arguments[0] == "fd":
        source, sink = int(arguments[1]), int(arguments[2])
        low, high = sorted((source, sink))
        for first, last in ((3, low), (low + 1, high), (high + 1, 1 << 16)):
            os.closerange(first, last)
        for descriptor in (source, sink):
            os.set_inheritable(descriptor, False)
        data = serve(read_config(source), source)
    else:
        import _socket  # only here: each costs the other front end a millisecond
        import binascii

        os.closerange(3, 1 << 16)
        # Only root may enter: the command cannot name what lies here.
        os.chmod(arguments[1], 0o700)
        line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        line.connect(arguments[1] + "/line")
        line.send(os.environ["RUN"].encode("ascii"))
        config = read_config(line.fileno())
        prepare(config)
        data = serve(config, line.fileno())
        if len(data) > _SMALL:
            write(os.open(arguments[1] + "/large", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), data)
            data = b""
        data = binascii.b2a_base64(data, newline=False)
        sink = os.open(arguments[1] + "/result", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    write(sink, data)


def write(sink: int, data: bytes) -> None:
    """All of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]


if __name__ == "__main__":
    main(sys.argv[1:])
