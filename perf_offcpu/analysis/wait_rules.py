# SPDX-License-Identifier: Apache-2.0
"""What functions and system calls say about what a thread waits for: the rules, and nothing but the rules.

Three kinds of evidence, the stronger first (`analysis.classify` weighs them):

    functions of the kernel in the stack    they know: the same read() waits for a disk, a pipe or a socket
    the system call                         its purpose, where it has one only
    wrappers in the user's part             the same, where the recording has neither of the others

A function of the kernel that serves everybody (schedule, schedule_timeout, wait_for_completion) says nothing,
so those who call it are asked. Names are those of Linux 5.15 to 6.18, without what compilers append
(`.constprop.0`). Documentation/wait-classes.md is the table for people; a test holds the two together.
"""

from __future__ import annotations

import enum
import functools
import re


class WaitClass(enum.IntEnum):
    """What a wait waits for."""

    OTHER = 0
    LOCK = 1
    DISK = 2
    NETWORK = 3
    PIPE = 4
    SLEEP = 5
    POLL = 6
    FAULT = 7
    CHILD = 8
    RUNQUEUE = 9

    @property
    def label(self) -> str:
        """Its name on command lines and in tables."""
        return self.name.lower()


CLASS_MEANINGS = {
    WaitClass.LOCK: "a lock, condition variable, semaphore or other futex; file locks; locks in the kernel",
    WaitClass.DISK: "storage and file systems: reads, writes, syncs, metadata, dirty-page throttling",
    WaitClass.NETWORK: "a socket of any family but unix, connections, NFS and other network file systems",
    WaitClass.PIPE: "a pipe, FIFO, unix socket, message queue",
    WaitClass.SLEEP: "time to pass: nanosleep, timerfd",
    WaitClass.POLL: "events: poll, select, epoll, eventfd, inotify, signalfd, io_uring completions",
    WaitClass.FAULT: "a page: page faults, swap",
    WaitClass.CHILD: "a child process (wait4, waitid, vfork)",
    WaitClass.RUNQUEUE: "a CPU and nothing else: preempted, or gave way (sched_yield)",
    WaitClass.OTHER: "anything else (signals, terminals, idle kernel threads), or not known",
}
"""Class → meaning, in the order in which people read them."""

BY_LABEL = {wait_class.label: wait_class for wait_class in CLASS_MEANINGS}


@functools.cache
def _pattern(words: str) -> re.Pattern[str]:
    """A pattern that matches any of some names, themselves patterns, between blanks. Made when first used:
    command lines need the classes only."""
    return re.compile("|".join(f"(?:{word})" for word in words.split()))


_KERNEL = {
    WaitClass.LOCK: (
        r"""
        _*futex_(wait|do_wait|wait_queue|wait_queue_me|wait_multiple|lock_pi|wait_requeue_pi)
        _*futex_wait_\w+ __mutex_lock\w* mutex_lock\w* ww_mutex_lock\w* _*rwsem_down_\w+
        down_(read|write)\w* _*percpu_down_read\w* percpu_rwsem_wait percpu_down_write __down(_\w+)?
        down(_interruptible|_killable|_timeout)? _*rt_mutex_\w+ rtlock_slowlock\w* rt_spin_lock\w*
        flock_lock_inode_wait posix_lock_inode_wait locks_lock_inode_wait fcntl_setlk(64)? __do_semtimedop
        do_semtimedop (__)?lock_sock(_nested)?
        """
    ),
    WaitClass.DISK: (
        r"""
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
        """
    ),
    WaitClass.NETWORK: (
        r"""
        sk_wait_data sk_stream_wait_\w+
        inet6?_(accept|csk_accept|wait_for_connect|stream_connect|dgram_connect) inet_csk_wait_for_connect
        inet_csk_accept tcp_\w+ udpv?6?_\w+ raw_(recvmsg|sendmsg) packet_recvmsg netlink_\w+ vsock_\w+
        sctp_\w+ mptcp_\w+ smc_\w+ rpc_\w+ __rpc_\w+ nfs[34]?_\w+ nfsd\w* cifs_\w+ smb2_\w+ SendReceive\w*
        compound_send_recv wait_for_response ceph_\w+ afs_\w+ inet6?_(recv|send)msg
        """
    ),
    WaitClass.PIPE: (
        r"""
        (anon_)?pipe_(read|write) pipe_wait\w* wait_for_partner fifo_open _*unix_\w+ do_msg(rcv|snd)
        wq_sleep do_mq_timed(receive|send) splice_from_pipe\w* (opipe|ipipe)_prep
        """
    ),
    WaitClass.SLEEP: (
        r"""
        do_nanosleep hrtimer_nanosleep common_nsleep\w* timerfd_read(_iter)? msleep\w* usleep_range\w*
        """
    ),
    WaitClass.POLL: (
        r"""
        poll_schedule_timeout do_poll do_sys_poll do_select core_sys_select _*ep_poll do_epoll_\w*wait
        schedule_hrtimeout_poll eventfd_read signalfd_read(_iter)? inotify_read fanotify_read
        io_cqring_wait\w* io_wq_worker io_sq_thread
        """
    ),
    WaitClass.CHILD: (r"do_wait kernel_wait4 kernel_waitid do_wait_\w+ wait_for_vfork_done"),
    WaitClass.OTHER: (
        r"""
        n_tty_read do_sigtimedwait sigsuspend do_sigsuspend __do_sys_pause ptrace_stop ptrace_notify
        do_signal_stop do_jobctl_trap worker_thread rescuer_thread kthread_worker_fn smpboot_thread_fn
        """
    ),
}
"""Functions of the kernel that name their class; among OTHER those that end the search."""

_FAULT_ENTRY = r"""
        asm_exc_page_fault exc_page_fault do_user_addr_fault handle_mm_fault __handle_mm_fault
        do_page_fault do_translation_fault do_swap_page faultin_page fixup_user_fault lock_mm_and_find_vma
        """
"""What is waited for below one of these is a page, unless it is a lock."""

_SUFFIX = re.compile(r"\.(?:constprop|isra|part|cold|llvm|lto_priv)\b.*")
_ENTRY = re.compile(r"(?:__(?:x64|ia32|arm64|riscv|s390x?|loongarch|se|do)_(?:compat_)?sys|ksys)_(\w+)")


def bare(function: str) -> str:
    """A function's name without what the compiler has appended."""
    return _SUFFIX.sub("", function)


def class_of_function(function: str) -> WaitClass | None:
    """What a function of the kernel waits for; None if it does not tell."""
    name = bare(function)
    return next((known for known, words in _KERNEL.items() if _pattern(words).fullmatch(name)), None)


def is_fault_entry(function: str) -> bool:
    """Whether this function of the kernel runs in page faults only."""
    return _pattern(_FAULT_ENTRY).fullmatch(bare(function)) is not None


def syscall_of_function(function: str) -> str:
    """The system call whose entry function of the kernel this is; "" if it is none."""
    match = _ENTRY.fullmatch(bare(function))
    return match[1] if match else ""


_SYSCALLS = {
    WaitClass.LOCK: """
        futex futex_time64 futex_wait futex_waitv futex_requeue flock lock semop semtimedop semtimedop_time64
        """,
    WaitClass.DISK: """
        fsync fdatasync sync syncfs sync_file_range sync_file_range2 arm_sync_file_range msync pread64
        pwrite64 preadv pwritev preadv2 pwritev2 getdents getdents64 readdir stat lstat fstat stat64
        lstat64 fstat64 fstatat64 newfstatat statx statfs fstatfs statfs64 fstatfs64 access faccessat
        faccessat2 readlink readlinkat mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 link
        linkat symlink symlinkat creat truncate ftruncate truncate64 ftruncate64 fallocate readahead
        fadvise64 io_getevents io_submit chmod fchmod fchmodat chown fchown lchown fchownat utimensat
        getxattr setxattr listxattr umount umount2 mount swapon swapoff copy_file_range quotactl
        """,
    WaitClass.NETWORK: """
        accept accept4 connect recv recvfrom recvmsg recvmmsg recvmmsg_time64 send sendto sendmsg sendmmsg
        socketcall
        """,
    WaitClass.PIPE: """
        msgrcv msgsnd mq_timedreceive mq_timedsend mq_timedreceive_time64 mq_timedsend_time64 splice tee
        vmsplice
        """,
    WaitClass.SLEEP: "nanosleep clock_nanosleep clock_nanosleep_time64",
    WaitClass.POLL: """
        poll ppoll ppoll_time64 select _newselect pselect6 pselect6_time64 epoll_wait epoll_wait_old
        epoll_pwait epoll_pwait2 io_uring_enter io_pgetevents io_pgetevents_time64
        """,
    WaitClass.CHILD: "wait4 waitid waitpid vfork",
    WaitClass.RUNQUEUE: "sched_yield",
    WaitClass.OTHER: """
        pause rt_sigsuspend sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 ptrace exit exit_group
        """,
}
CLASS_OF_SYSCALL = {name: known for known, names in _SYSCALLS.items() for name in names.split()}
"""System calls with one purpose. Of others (read, write, ioctl, close, …) the name says nothing."""

FILE_SYSCALLS = frozenset(
    (
        "read",
        "write",
        "readv",
        "writev",
        "open",
        "openat",
        "openat2",
        "close",
        "sendfile",
        "sendfile64",
        "ioctl",
    )
)
"""Those that wait in state D for storage only: pipes, sockets and terminals are waited for in state S."""

_USER = {
    WaitClass.LOCK: (
        r"""
        _*pthread_(mutex_|rwlock_|cond_|spin_|barrier_|join|timedjoin|clockjoin)\w* _*lll_lock_wait\w*
        futex\w* _*futex_abstimed_wait\w* sem_(wait|timedwait|clockwait) __new_sem_wait\w* __timedwait\w*
        mtx_lock cnd_wait call_once runtime\.futex.* runtime\.semasleep.* Unsafe_Park flockf? lockf
        """
    ),
    WaitClass.DISK: (r"fsync fdatasync syncfs? msync p(read|write)v?2?(64)?(v64)? readdir\w* [lf]?stat(64)?"),
    WaitClass.NETWORK: (r"_*accept4? _*connect(64)? _*recv(from|msg|mmsg)? _*send(to|msg|mmsg)? getaddrinfo"),
    WaitClass.PIPE: (r"msgrcv msgsnd mq_(timed)?(receive|send) splice vmsplice tee"),
    WaitClass.SLEEP: (r"_*(clock_)?nanosleep u?sleep runtime\.usleep.* thrd_sleep"),
    WaitClass.POLL: (
        r"_*poll _*ppoll(_time64)? _*p?select(64)? _*epoll_p?wait2? runtime\.epollwait.* io_uring_wait\w*"
    ),
    WaitClass.CHILD: (r"_*wait(pid|id|3|4)? _*vfork"),
    WaitClass.RUNQUEUE: (r"_*sched_yield"),
    WaitClass.OTHER: (r"_*pause _*sigsuspend sigwait(info)? _*sigtimedwait"),
}
_FILE_WRAPPER = r"_*(read|write)v?(64)? _*open(at)?(64)?(_nocancel)? _*close _*sendfile(64)? _*ioctl"
_VERSION = re.compile(r"@.*")


def class_of_wrapper(function: str) -> WaitClass | None:
    """What a function of libc (or Go's runtime) waits for; None if it does not tell."""
    name = _VERSION.sub("", function)
    return next((known for known, words in _USER.items() if _pattern(words).fullmatch(name)), None)


def is_file_wrapper(function: str) -> bool:
    """Whether this is libc's function for one of FILE_SYSCALLS."""
    return _pattern(_FILE_WRAPPER).fullmatch(_VERSION.sub("", function)) is not None


_WORK_IN_KERNEL = r"""
        inet6?_(csk_)?accept unix_accept vsock_accept do_sigtimedwait sigsuspend do_sigsuspend n_tty_read
        kthread
        """
_OTHERS_WORK = "process_one_work io_worker_handle_work"
_WORK_SYSCALLS = frozenset(("accept", "accept4", "pause", "rt_sigsuspend", "sigsuspend", "rt_sigtimedwait"))
_WORK_WRAPPER = r"""
        _*pthread_cond_\w*wait\w* cnd_(timed)?wait sem_(wait|timedwait|clockwait) __new_sem_wait\w*
        _*futex_abstimed_wait\w* Unsafe_Park runtime\.(stopm|mPark|findRunnable|notesleep|notetsleepg).*
        """


def is_for_work_in_kernel(function: str) -> bool | None:
    """Whether this function of the kernel waits for the next piece of work: connections, signals, input of a
    terminal, or what a kernel thread lives for; False: it is at work; None: it does not tell."""
    name = bare(function)
    if _pattern(_OTHERS_WORK).fullmatch(name):
        return False
    return True if _pattern(_WORK_IN_KERNEL).fullmatch(name) else None


def is_for_work_syscall(syscall: str) -> bool:
    """Whether this system call waits for work and nothing else."""
    return syscall in _WORK_SYSCALLS


def is_for_work_wrapper(function: str) -> bool:
    """Whether this function of libc or Go's runtime waits to be told that there is something to do."""
    return _pattern(_WORK_WRAPPER).fullmatch(_VERSION.sub("", function)) is not None
