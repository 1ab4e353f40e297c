"""The system calls that no sandboxed command may make, as a classic BPF program built by hand.

The list refuses; it does not allow. What a test suite needs is too wide for an allowlist, and every wall that matters
(namespaces, read-only mounts, no capabilities) stands without it. It closes what those walls leave open within one uid:
tracing the launcher, taking its descriptors, changing its limits, and kernel doors that only widen the attack surface.
Numbers are from the kernel's system call tables; the newer ones (424 and up) are the same on both machines.
"""

from __future__ import annotations

import errno
import functools
import platform
import socket
import struct

from ..errors import EngineUnavailable

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)
"""Socket families that stay open: UNIX, INET, INET6, NETLINK."""

_SHARED = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "open_tree_attr": 467,
}

_X86_64 = {
    "ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "ptrace": 101, "syslog": 103, "setpriority": 141,
    "sched_setparam": 142, "sched_setscheduler": 144, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155,
    "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167,
    "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
    "init_module": 175, "delete_module": 176, "quotactl": 179, "sched_setaffinity": 203, "lookup_dcookie": 212,
    "clock_settime": 227, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251,
    "migrate_pages": 256, "unshare": 272, "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300,
    "prlimit64": 302, "setrlimit": 160, "name_to_handle_at": 303, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308,
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "sched_setattr": 314,
    "memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
}  # fmt: skip

_AARCH64 = {
    "lookup_dcookie": 18, "ioctl": 29, "ioprio_set": 30, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51,
    "vhangup": 58, "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105,
    "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "sched_setparam": 118,
    "sched_setscheduler": 119, "sched_setaffinity": 122, "setpriority": 140, "reboot": 142, "sethostname": 161,
    "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "socket": 198, "socketpair": 199, "add_key": 217,
    "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224, "swapoff": 225, "migrate_pages": 238,
    "move_pages": 239, "perf_event_open": 241, "prlimit64": 261, "fanotify_init": 262, "name_to_handle_at": 264,
    "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
    "kcmp": 272, "finit_module": 273, "sched_setattr": 274, "memfd_create": 279, "bpf": 280, "userfaultfd": 282,
    "kexec_file_load": 294, "setrlimit": 164,
}  # fmt: skip

MACHINES = {"x86_64": (0xC000003E, _X86_64 | _SHARED), "aarch64": (0xC00000B7, _AARCH64 | _SHARED)}
"""Machine to (audit architecture, name to number)."""

# Absent rather than forbidden: callers have a fallback for ENOSYS. clone3 hides its flags from a filter.
_ABSENT = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_secret", "memfd_create")
_JUDGED = ("ioctl", "socket", "socketpair", "clone", "prlimit64", "setrlimit", "setpriority", "ioprio_set",
           "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")  # fmt: skip

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_RLIMIT_CORE = 4


@functools.cache
def program(machine: str = "", memfd: bool = False) -> bytes:
    """The filter for ``machine`` (default: this one), as an array of struct sock_filter in native byte order.

    ``memfd``: whether memory files are allowed, which only a memory cgroup can count. Raises EngineUnavailable for a
    machine whose system calls are not known here.
    """
    machine = machine or platform.machine()
    if machine not in MACHINES:
        known = ", ".join(sorted(MACHINES))
        raise EngineUnavailable("bubblewrap", f"no system call filter for {machine}", f"use one of {known}, or --engine dagger")
    architecture, numbers = MACHINES[machine]
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":  # the x32 numbers would slip past every comparison below
        code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for name, number in sorted(numbers.items()):
        if name in _JUDGED:
            body = _judge(name)
            code += [(_EQUAL, 0, len(body), number), *body]
        elif not (name == "memfd_create" and memfd):
            refusal = errno.ENOSYS if name in _ABSENT else errno.EPERM
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | refusal)]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in code)


def _judge(name: str) -> list[tuple[int, int, int, int]]:
    """Steps that end in allow or refuse by an argument's low half, which is all that the kernel reads of an int."""
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    if name in ("socket", "socketpair"):
        rows = [(_EQUAL, len(FAMILIES) - at, 0, int(family)) for at, family in enumerate(FAMILIES)]
        return [_argument(0), *rows, (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT), allow]
    if name == "clone":
        return [_argument(0), (_ANY_BIT, 0, 1, _NAMESPACES), refuse, allow]
    if name == "ioctl":  # typing into a terminal
        return [_argument(1), (_EQUAL, 1, 0, _TIOCSTI), (_EQUAL, 0, 1, _TIOCLINUX), refuse, allow]
    # A changed core limit would let a crash start the host's dump helper: it seems to succeed and changes nothing.
    ignore = (_RETURN, 0, 0, _ERRNO)
    if name == "setrlimit":
        return [_argument(0), (_EQUAL, 0, 1, _RLIMIT_CORE), ignore, allow]
    if name == "prlimit64":  # of another process: the launcher's limits are the launcher's
        new = [(_EQUAL, 0, 1, 0), _argument(2, high=True), (_EQUAL, 1, 0, 0), ignore, allow]
        return [_argument(0), (_EQUAL, 1, 0, 0), refuse, _argument(1), (_EQUAL, 1, 0, _RLIMIT_CORE), allow, _argument(2), *new]
    if name == "setpriority":  # of a process other than pid 1
        return [_argument(0), (_EQUAL, 0, 2, 0), _argument(1), (_EQUAL, 0, 1, 1), refuse, allow]
    if name == "ioprio_set":
        return [_argument(0), (_EQUAL, 0, 2, 1), _argument(1), (_EQUAL, 0, 1, 1), refuse, allow]
    return [_argument(0), (_EQUAL, 0, 1, 1), refuse, allow]  # sched_*: not of pid 1


def _argument(index: int, high: bool = False) -> tuple[int, int, int, int]:
    """Load the low or the high 32 bits of an argument; both machines are little-endian."""
    return (_LOAD, 0, 0, 16 + 8 * index + 4 * high)
