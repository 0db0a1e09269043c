# SPDX-License-Identifier: Apache-2.0
"""Declare the wait classes: meaning, colour and rules of each class, one row per class.

A row names functions of the kernel, system calls, and wrappers in libc or Go's runtime that mean its class,
and which functions and calls wait for the next piece of work. `classify` applies the rules: the function nearest to
the leaf that means a class decides; if two classes name it, the first one. Functions that serve all classes
(schedule, schedule_timeout, wait_for_completion) are in no row, so their callers decide. Names are those of
Linux 5.15 to 6.18, without the suffixes of compilers (`.constprop.0`). Rules of functions and wrappers are
regular expressions separated by blanks.

Options, reports, converters and Documentation/wait-classes.md are made from this table.
"""

from __future__ import annotations

import enum
import functools
import re
from typing import NamedTuple


class Work(enum.Enum):
    """Condition on which a wait of a class is a wait for the next piece of work, as the waits of idle threads are."""

    NEVER = enum.auto()
    ALWAYS = enum.auto()
    BY_LOCK = enum.auto()  # by the meaning of the wrapper (`Means`), and by the threads that end the waits
    BY_FUNCTION = enum.auto()  # where the system call or a function of the kernel is for work


class Means(enum.IntEnum):
    """Meaning of a futex by the name of the function of libc or Go's runtime that waits for it."""

    LOCK = 0  # a lock that threads hold, a barrier or a join: never for work
    CONDITION = 1  # a condition variable, or what parks a thread until another thread unparks it
    SEMAPHORE = 2


class ClassRow(NamedTuple):
    """Row of the table of wait classes. Rules are regular expressions for whole names, separated by blanks."""

    meaning: str  # what the waiting thread needs, in words
    colour: str  # a GraphColor of Firefox profiler (src/types/profile.ts); all ten are in use: a new class shares one
    work: Work = Work.BY_FUNCTION  # see `Work`
    functions: str = ""  # functions of the kernel
    syscalls: str = ""  # system calls that are used for nothing else
    wrappers: str = ""  # functions of libc or Go's runtime
    work_functions: str = ""  # functions of the kernel that wait for the next piece of work
    work_syscalls: str = ""  # system calls that wait for the next piece of work


class WaitClass(enum.IntEnum):
    """Classes of waits. The value of a member is its number in columns. The members after OTHER stand in the order of
    views and of the rules."""

    row: ClassRow

    def __new__(cls, *row: object) -> WaitClass:
        """Make the next member: its number is its position in the class, its `row` has the given fields."""
        member = int.__new__(cls, len(cls.__members__))
        member._value_ = len(cls.__members__)
        member.row = ClassRow(*row)  # type: ignore[arg-type]
        return member

    @property
    def label(self) -> str:
        """Return the name in lower case, as on command lines and in tables."""
        return self.name.lower()

    OTHER = ClassRow(
        "anything else (signals, terminals, idle kernel threads), or not known",
        "grey",
        functions="""
            n_tty_read do_sigtimedwait sigsuspend do_sigsuspend __do_sys_pause
            do_exit do_group_exit worker_thread rescuer_thread kthread_worker_fn smpboot_thread_fn
        """,
        syscalls="""
            pause rt_sigsuspend sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 ptrace exit exit_group
        """,
        wrappers="_*pause _*sigsuspend sigwait(info)? _*sigtimedwait",
        work_functions="do_sigtimedwait sigsuspend do_sigsuspend n_tty_read kthread",
        work_syscalls="pause rt_sigsuspend sigsuspend rt_sigtimedwait",
    )
    LOCK = ClassRow(
        "a lock, condition variable, semaphore or other futex; file locks; locks in the kernel",
        "red",
        Work.BY_LOCK,
        functions=r"""
            _*futex_(wait|do_wait|wait_queue|wait_queue_me|wait_multiple|lock_pi|wait_requeue_pi)
            _*futex_wait_\w+ __mutex_lock\w* mutex_lock\w* ww_mutex_lock\w* _*rwsem_down_\w+
            down_(read|write)\w* _*percpu_down_read\w* percpu_rwsem_wait percpu_down_write __down(_\w+)?
            down(_interruptible|_killable|_timeout)? _*rt_mutex_\w+ rtlock_slowlock\w* rt_spin_lock\w*
            flock_lock_inode_wait posix_lock_inode_wait locks_lock_inode_wait fcntl_setlk(64)? __do_semtimedop
            do_semtimedop (__)?lock_sock(_nested)?
        """,
        syscalls="""
            fcntl fcntl64
            futex futex_time64 futex_wait futex_waitv futex_requeue flock lock semop semtimedop
            semtimedop_time64
        """,
        wrappers=r"""
            _*pthread_(mutex_|rwlock_|cond_|spin_|barrier_|join|timedjoin|clockjoin)\w* _*lll_lock_wait\w*
            futex\w* _*futex_abstimed_wait\w* sem_(wait|timedwait|clockwait) __new_sem_wait\w* __timedwait\w*
            mtx_lock cnd_wait call_once runtime\.futex.* runtime\.semasleep.* Unsafe_Park flockf? lockf
        """,
    )
    DISK = ClassRow(
        "storage and file systems: reads, writes, syncs, metadata, dirty-page throttling",
        "purple",
        Work.NEVER,
        functions=r"""
            io_schedule(_timeout|_prepare)? _*blk_\w+ _*blkdev_\w+ blkg_\w+ _*bio_\w+ submit_bio\w*
            _*submit_bh\w* wait_on_buffer __wait_on_buffer bit_wait_io\w* folio_wait_(bit|writeback|stable)\w*
            wait_on_page_\w+ __filemap_get_folio\w* filemap_(read|get_pages|update_page|fdatawait)\w*
            __filemap_fdatawait\w* filemap_fault balance_dirty_pages\w* wbt_wait rq_qos_wait writeback_\w+
            _*jbd2_\w+ start_this_handle add_transaction_credits do_get_write_access ext[234]_\w+ xfs_\w+
            xlog_\w+ btrfs_\w+ f2fs_\w+ fat_\w+ erofs_\w+ squashfs_\w+ overlayfs_\w+ ovl_\w+ iomap_\w+
            __iomap_\w+ _*dio_\w+ do_blockdev_direct_IO nvme_\w+ scsi_\w+ md_\w+ raid\d+_\w+ dm_\w+
            virtblk_\w+ sync_(bdevs|inodes_sb|filesystem|blockdev|dirty_buffer)\w* _*sync_dirty_buffer
            _*writeback_single_inode vfs_fsync_range file_write_and_wait_range wait_sb_inodes fuse_\w+
            request_wait_answer p9_\w+ read_events
        """,
        syscalls="""
            fsync fdatasync sync syncfs sync_file_range sync_file_range2 arm_sync_file_range msync pread64
            pwrite64 preadv pwritev preadv2 pwritev2 getdents getdents64 readdir stat lstat fstat stat64
            lstat64 fstat64 fstatat64 newfstatat statx statfs fstatfs statfs64 fstatfs64 access faccessat
            faccessat2 readlink readlinkat mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link
            linkat symlink symlinkat creat truncate ftruncate truncate64 ftruncate64 fallocate readahead
            fadvise64 io_destroy io_getevents io_submit chmod fchmod fchmodat chown fchown lchown fchownat
            utimensat getxattr setxattr listxattr umount umount2 mount swapon swapoff copy_file_range quotactl
        """,
        wrappers=r"fsync fdatasync syncfs? msync p(read|write)v?2?(64)?(v64)? readdir\w* [lf]?stat(64)?",
    )
    NETWORK = ClassRow(
        "a socket of any family but unix, connections, NFS and other network file systems",
        "green",
        functions=r"""
            sk_wait_data sk_stream_wait_\w+
            inet6?_(accept|csk_accept|wait_for_connect|stream_connect|dgram_connect) inet_csk_wait_for_connect
            inet_csk_accept tcp_\w+ udpv?6?_\w+ raw_(recvmsg|sendmsg) packet_recvmsg netlink_\w+ vsock_\w+
            sctp_\w+ mptcp_\w+ smc_\w+ rpc_\w+ __rpc_\w+ nfs[34]?_\w+ nfsd\w* cifs_\w+ smb2_\w+ SendReceive\w*
            compound_send_recv wait_for_response ceph_\w+ afs_\w+ inet6?_(recv|send)msg
        """,
        syscalls="""
            accept accept4 connect recv recvfrom recvmsg recvmmsg recvmmsg_time64 send sendto sendmsg sendmmsg
            socketcall
        """,
        wrappers="_*accept4? _*connect(64)? _*recv(from|msg|mmsg)? _*send(to|msg|mmsg)? getaddrinfo",
        work_functions="inet6?_(csk_)?accept vsock_accept",
        work_syscalls="accept accept4",
    )
    PIPE = ClassRow(
        "a pipe, FIFO, unix socket, message queue",
        "lightblue",
        functions=r"""
            (anon_)?pipe_(read|write) pipe_wait\w* wait_for_partner fifo_open _*unix_\w+ do_msg(rcv|snd)
            wq_sleep do_mq_timed(receive|send) splice_from_pipe\w* (opipe|ipipe)_prep
        """,
        syscalls="""
            msgrcv msgsnd mq_timedreceive mq_timedsend mq_timedreceive_time64 mq_timedsend_time64 splice tee
            vmsplice
        """,
        wrappers="msgrcv msgsnd mq_(timed)?(receive|send) splice vmsplice tee",
        work_functions="unix_accept",
    )
    SLEEP = ClassRow(
        "time to pass: nanosleep, timerfd",
        "darkgrey",
        functions=r"""
            do_nanosleep hrtimer_nanosleep common_nsleep\w* timerfd_read(_iter)? msleep\w* usleep_range\w*
        """,
        syscalls="nanosleep clock_nanosleep clock_nanosleep_time64",
        wrappers=r"_*(clock_)?nanosleep u?sleep runtime\.usleep.* thrd_sleep",
    )
    POLL = ClassRow(
        "events: poll, select, epoll, eventfd, inotify, signalfd, io_uring completions",
        "blue",
        Work.ALWAYS,
        functions=r"""
            poll_schedule_timeout do_poll do_sys_poll do_select core_sys_select _*ep_poll do_epoll_\w*wait
            schedule_hrtimeout_poll eventfd_read signalfd_read(_iter)? inotify_read fanotify_read
            io_cqring_wait\w* io_wq_worker io_sq_thread
        """,
        syscalls="""
            poll ppoll ppoll_time64 select _newselect pselect6 pselect6_time64 epoll_wait epoll_wait_old
            epoll_pwait epoll_pwait2 io_uring_enter io_pgetevents io_pgetevents_time64
        """,
        wrappers=r"""
            _*poll _*ppoll(_time64)? _*p?select(64)? _*epoll_p?wait2? runtime\.epollwait.* io_uring_wait\w*
        """,
    )
    FAULT = ClassRow("a page: page faults, swap", "magenta", Work.NEVER)
    CHILD = ClassRow(
        "the end of a child process or of a thread (wait4, waitid, pidfd, vfork, pthread_join)",
        "brown",
        Work.NEVER,
        functions="_*do_wait kernel_wait4 kernel_waitid wait_for_vfork_done",
        syscalls="wait4 waitid waitpid vfork",
        wrappers="_*wait(pid|id|3|4)? _*vfork",
    )
    RUNQUEUE = ClassRow(
        "a CPU and nothing else: preempted, or gave way (sched_yield)",
        "lightred",
        Work.NEVER,
        syscalls="sched_yield",
        wrappers="_*sched_yield",
    )
    THROTTLED = ClassRow(
        "CPU time that the quota of its control group does not allow yet (cpu.max, cpu.cfs_quota_us)", "red", Work.NEVER
    )
    STOPPED = ClassRow(
        "SIGCONT, a debugger, or its control group: the thread was stopped (SIGSTOP, ptrace, cgroup.freeze)",
        "brown",
        Work.NEVER,
        functions="""
            do_signal_stop ptrace_stop ptrace_notify do_jobctl_trap do_freezer_trap get_signal __refrigerator
        """,
    )


CLASSES = (*list(WaitClass)[1:], WaitClass.OTHER)  # all classes in the order of views: OTHER is the last one
BY_LABEL = {one.label: one for one in CLASSES}
CLASS_OF_SYSCALL = {name: one for one in CLASSES for name in one.row.syscalls.split()}
"""System calls with one purpose. Others (read, write, ioctl, close, …) do not tell the object of a wait."""

FILE_SYSCALLS = frozenset("read write readv writev open openat openat2 close sendfile sendfile64 ioctl".split())
"""System calls whose waits in state D are for storage: pipes, sockets and terminals are waited for in S."""
FILE_WRAPPER = r"_*(read|write)v?(64)? _*open(at)?(64)?(_nocancel)? _*close _*sendfile(64)? _*ioctl"

FAULT_ENTRY = """
    asm_exc_page_fault exc_page_fault do_user_addr_fault handle_mm_fault __handle_mm_fault
    do_page_fault do_translation_fault do_swap_page faultin_page fixup_user_fault lock_mm_and_find_vma
"""
"""Functions of the kernel that run in page faults only."""
_AT_WORK = "process_one_work io_worker_handle_work"  # functions of kernel threads that have a piece of work
_WORK_FUNCTIONS = " ".join(one.row.work_functions for one in CLASSES)
WORK_SYSCALLS = frozenset(name for one in CLASSES for name in one.row.work_syscalls.split())
"""System calls that wait for the next piece of work and nothing else."""

_MEANINGS = {
    Means.LOCK: r"""
        _*pthread_(mutex_|rwlock_|spin_|barrier_)\w* _*pthread_\w*join\w* _*lll_lock_wait\w* mtx_(timed)?lock
        call_once runtime\.(lock2|lockWithRank|futexlock).*
    """,
    Means.CONDITION: r"""
        _*pthread_cond_\w*wait\w* cnd_(timed)?wait Unsafe_Park
        runtime\.(stopm|mPark|findRunnable|notesleep|notetsleepg).*
    """,
    Means.SEMAPHORE: r"sem_(wait|timedwait|clockwait) __new_sem_wait\w*",
}

KEPT_NAMES = 1 << 14
"""Functions whose judgement is kept: a view judges them more than once, an agent in each segment."""

_ENTRY = re.compile(r"(?:__(?:x64|ia32|arm64|riscv|s390x?|loongarch|se|do)_(?:compat_)?sys|ksys)_(\w+)")


@functools.lru_cache(KEPT_NAMES)
def class_of_function(name: str) -> WaitClass | None:
    """Return the class that a function of the kernel means; None without a class."""
    return next((class_ for class_ in CLASSES if matches(class_.row.functions, name)), None)


@functools.lru_cache(KEPT_NAMES)
def class_of_wrapper(name: str) -> WaitClass | None:
    """Return the class of waits in a function of libc or Go's runtime; None for other functions."""
    return next((class_ for class_ in CLASSES if matches(class_.row.wrappers, name)), None)


@functools.lru_cache(KEPT_NAMES)
def meaning_of_wrapper(name: str) -> Means | None:
    """Return the meaning of the futex that a function of libc or Go's runtime waits for; None for other functions."""
    return next((means for means, rules in _MEANINGS.items() if matches(rules, name)), None)


def syscall_of_function(name: str) -> str:
    """Return the system call that a function of the kernel enters; "" for other functions."""
    match = _ENTRY.fullmatch(name)
    return match[1] if match else ""


@functools.lru_cache(KEPT_NAMES)
def is_for_work_in_kernel(name: str) -> bool | None:
    """Return True if this function of the kernel waits for the next piece of work, such as a connection. False: it
    works on a piece of work. None: unknown."""
    return False if matches(_AT_WORK, name) else matches(_WORK_FUNCTIONS, name) or None


def matches(rules: str, name: str) -> bool:
    """Return True if a name matches any of the rules, regular expressions separated by blanks."""
    words, pattern = _compiled(rules)
    return name in words or pattern.fullmatch(name) is not None


@functools.cache
def _compiled(rules: str) -> tuple[frozenset[str], re.Pattern[str]]:
    """Return (rules that are plain words, pattern of the others). Most are words, and compiling them would take longer
    than a short report. Rules are compiled at their first use: command lines need only the labels."""
    words = frozenset(rule for rule in rules.split() if rule.isidentifier())
    others = (rule for rule in rules.split() if rule not in words)
    return words, re.compile("|".join(f"(?:{rule})" for rule in others) or r"(?!)")
