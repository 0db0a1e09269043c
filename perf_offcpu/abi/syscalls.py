# SPDX-License-Identifier: Apache-2.0
"""Names of system calls by number, for the architectures that Linux distributions are built for.

A number depends on the architecture, and on three of them on the program, too:

    x86-64    numbers with bit 30 set are x32's; those of 32-bit programs (int 0x80, sysenter) are i386's
    arm64     32-bit programs use arm's numbers
    s390x, …  31-bit programs, which current kernels no longer run

No field of a sample marks 32-bit programs; the kernel's entry functions in its stack do (see `is_compat_entry`).

The tables list names in order of numbers, `N:` where the numbers jump. Numbers never change their meaning. From 403
on all architectures have the same names: _TIME64 where a long has 32 bits, then _SHARED. _FIRST_PORTS are names that
i386, arm, s390 and powerpc have in common; each has a table that replaces some, "-" where a number has no name.

Source: arch/x86/entry/syscalls/syscall_64.tbl and syscall_32.tbl, scripts/syscall.tbl (arm64, riscv, loongarch),
arch/arm/tools/syscall.tbl, arch/s390/kernel/syscalls/syscall.tbl, arch/powerpc/kernel/syscalls/syscall.tbl; up to
Linux 6.18; for 470 and 471: Linux 7.2 (linux-libc-dev 7.2.13: asm/unistd_64.h and unistd_32.h of x86, arm64, riscv,
powerpc, s390).

Meanings of arguments (`call_numbers`) have the names of `enum offcpu_call_kind` and `enum offcpu_timeout` in
bpf/off_cpu.h, in lower case and without their prefixes. Sources: man pages of section 2.
"""

import functools
import re
from collections.abc import Mapping

_SHARED = """
424: pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount
fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr
quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret process_mrelease futex_waitv
set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount
lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat
open_tree_attr file_getattr file_setattr listns rseq_slice_yield
"""
_TIME64 = """
403: clock_gettime64 clock_settime64 clock_adjtime64 clock_getres_time64 clock_nanosleep_time64 timer_gettime64
timer_settime64 timerfd_gettime64 timerfd_settime64 utimensat_time64 pselect6_time64 ppoll_time64 416:
io_pgetevents_time64 recvmmsg_time64 mq_timedsend_time64 mq_timedreceive_time64 semtimedop_time64
rt_sigtimedwait_time64 futex_time64 sched_rr_get_interval_time64
"""
_X86_64 = """
0: read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
ioctl pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise shmget shmat shmctl
dup dup2 pause nanosleep getitimer alarm setitimer getpid sendfile socket connect accept sendto recvfrom sendmsg
recvmsg shutdown bind listen getsockname getpeername socketpair setsockopt getsockopt clone fork vfork execve exit
wait4 kill uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl fcntl flock fsync fdatasync truncate ftruncate
getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink symlink readlink chmod fchmod chown fchown lchown
umask gettimeofday getrlimit getrusage sysinfo times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid
getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid getresgid getpgid setfsuid
setfsgid getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod
uselib personality ustat statfs fstatfs sysfs getpriority setpriority sched_setparam sched_getparam sched_setscheduler
sched_getscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval mlock munlock mlockall
munlockall vhangup modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex setrlimit chroot sync acct settimeofday
mount umount2 swapon swapoff reboot sethostname setdomainname iopl ioperm create_module init_module delete_module
get_kernel_syms query_module quotactl nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead
setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr
fremovexattr tkill time futex sched_setaffinity sched_getaffinity set_thread_area io_setup io_destroy io_getevents
io_submit io_cancel get_thread_area lookup_dcookie epoll_create epoll_ctl_old epoll_wait_old remap_file_pages
getdents64 set_tid_address restart_syscall semtimedop fadvise64 timer_create timer_settime timer_gettime
timer_getoverrun timer_delete clock_settime clock_gettime clock_getres clock_nanosleep exit_group epoll_wait epoll_ctl
tgkill utimes vserver mbind set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify
mq_getsetattr kexec_load waitid add_key request_key keyctl ioprio_set ioprio_get inotify_init inotify_add_watch
inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat futimesat newfstatat unlinkat renameat linkat symlinkat
readlinkat fchmodat faccessat pselect6 ppoll unshare set_robust_list get_robust_list splice tee sync_file_range
vmsplice move_pages utimensat epoll_pwait signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime
accept4 signalfd4 eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open
recvmmsg fanotify_init fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns
getcpu process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom
memfd_create kexec_file_load bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect
pkey_alloc pkey_free statx io_pgetevents rseq uretprobe uprobe
"""
_FIRST_PORTS = """
0: restart_syscall exit fork read write open close waitpid creat link unlink execve chdir time mknod chmod lchown
break oldstat lseek getpid mount umount setuid getuid stime ptrace alarm oldfstat pause utime stty gtty access nice
ftime sync kill rename mkdir rmdir dup pipe times prof brk setgid getgid signal geteuid getegid acct umount2 lock
ioctl fcntl mpx setpgid ulimit oldolduname umask chroot ustat dup2 getppid getpgrp setsid sigaction sgetmask ssetmask
setreuid setregid sigsuspend sigpending sethostname setrlimit getrlimit getrusage gettimeofday settimeofday getgroups
setgroups select symlink oldlstat readlink uselib swapon reboot readdir mmap munmap truncate ftruncate fchmod fchown
getpriority setpriority profil statfs fstatfs ioperm socketcall syslog setitimer getitimer stat lstat fstat olduname
iopl vhangup idle 114: wait4 swapoff sysinfo ipc fsync sigreturn clone setdomainname uname modify_ldt adjtimex
mprotect sigprocmask create_module init_module delete_module get_kernel_syms quotactl getpgid fchdir bdflush sysfs
personality afs_syscall setfsuid setfsgid _llseek getdents _newselect flock msync readv writev getsid fdatasync
_sysctl mlock munlock mlockall munlockall sched_setparam sched_getparam sched_setscheduler sched_getscheduler
sched_yield sched_get_priority_max sched_get_priority_min sched_rr_get_interval nanosleep mremap setresuid getresuid
167: query_module poll nfsservctl setresgid getresgid prctl rt_sigreturn rt_sigaction rt_sigprocmask rt_sigpending
rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend pread64 pwrite64 chown getcwd capget capset sigaltstack sendfile getpmsg
putpmsg vfork ugetrlimit mmap2 truncate64 ftruncate64 stat64 lstat64 fstat64 lchown32 getuid32 getgid32 geteuid32
getegid32 setreuid32 setregid32 getgroups32 setgroups32 fchown32 setresuid32 getresuid32 setresgid32 getresgid32
chown32 setuid32 setgid32 setfsuid32 setfsgid32 pivot_root mincore madvise getdents64 fcntl64 224: gettid readahead
setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr
fremovexattr tkill sendfile64 futex sched_setaffinity sched_getaffinity io_setup io_destroy io_getevents io_submit
io_cancel exit_group 359: socket socketpair bind connect listen accept4 getsockopt setsockopt getsockname getpeername
sendto sendmsg recvfrom recvmsg shutdown 383: statx 392: semtimedop semget semctl shmget shmctl shmat shmdt msgget
msgsnd msgrcv msgctl
"""
_I386 = """
113: vm86old 166: vm86 243: set_thread_area get_thread_area io_setup io_destroy io_getevents io_submit io_cancel
fadvise64 252: exit_group lookup_dcookie epoll_create epoll_ctl epoll_wait remap_file_pages set_tid_address
timer_create timer_settime timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres
clock_nanosleep statfs64 fstatfs64 tgkill utimes fadvise64_64 vserver mbind get_mempolicy set_mempolicy mq_open
mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid 286: add_key request_key keyctl
ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat
futimesat fstatat64 unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll unshare
set_robust_list get_robust_list splice sync_file_range tee vmsplice move_pages getcpu epoll_pwait utimensat signalfd
timerfd_create eventfd fallocate timerfd_settime timerfd_gettime signalfd4 eventfd2 epoll_create1 dup3 pipe2
inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init fanotify_mark prlimit64
name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns process_vm_readv process_vm_writev kcmp
finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create bpf execveat 374: userfaultfd
membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx arch_prctl io_pgetevents
rseq 392: -
"""
_GENERIC = """
0: io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr
listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd lookup_dcookie eventfd2 epoll_create1
epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1 inotify_add_watch inotify_rm_watch ioctl ioprio_set ioprio_get
flock mknodat mkdirat unlinkat symlinkat linkat renameat umount2 mount pivot_root nfsservctl statfs fstatfs truncate
ftruncate fallocate faccessat chdir fchdir chroot fchmod fchmodat fchownat fchown openat close vhangup pipe2 quotactl
getdents64 lseek read write readv writev pread64 pwrite64 preadv pwritev sendfile pselect6 ppoll signalfd4 vmsplice
splice tee readlinkat newfstatat fstat sync fsync fdatasync sync_file_range timerfd_create timerfd_settime
timerfd_gettime utimensat acct capget capset personality exit exit_group waitid set_tid_address unshare futex
set_robust_list get_robust_list nanosleep getitimer setitimer kexec_load init_module delete_module timer_create
timer_gettime timer_getoverrun timer_settime timer_delete clock_settime clock_gettime clock_getres clock_nanosleep
syslog ptrace sched_setparam sched_setscheduler sched_getscheduler sched_getparam sched_setaffinity sched_getaffinity
sched_yield sched_get_priority_max sched_get_priority_min sched_rr_get_interval restart_syscall kill tkill tgkill
sigaltstack rt_sigsuspend rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigreturn
setpriority getpriority reboot setregid setgid setreuid setuid setresuid getresuid setresgid getresgid setfsuid
setfsgid times setpgid getpgid getsid setsid getgroups setgroups uname sethostname setdomainname getrlimit setrlimit
getrusage umask prctl getcpu gettimeofday settimeofday adjtimex getpid getppid getuid geteuid getgid getegid gettid
sysinfo mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl msgrcv msgsnd semget
semctl semtimedop semop shmget shmctl shmat shmdt socket socketpair bind listen accept connect getsockname getpeername
sendto recvfrom setsockopt getsockopt shutdown sendmsg recvmsg readahead brk munmap mremap add_key request_key keyctl
clone execve mmap fadvise64 swapon swapoff mprotect msync mlock munlock mlockall munlockall mincore madvise
remap_file_pages mbind get_mempolicy set_mempolicy migrate_pages move_pages rt_tgsigqueueinfo perf_event_open accept4
recvmmsg 260: wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at clock_adjtime syncfs
setns sendmmsg process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp
getrandom memfd_create bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect
pkey_alloc pkey_free statx io_pgetevents rseq kexec_file_load
"""
_ARM = """
7: - 13: - 17: - - 22: - 25: - 27: - - 30: - - - 35: - 44: - 48: - 53: - 56: - 58: - - 68: - - 76: - 82: - 84: - 89: -
- 98: - 101: - - 109: - - 112: - 117: - 123: - 127: - 130: - 137: - 167: - 188: - - 217: getdents64 pivot_root mincore
madvise 249: lookup_dcookie epoll_create epoll_ctl epoll_wait remap_file_pages 256: set_tid_address timer_create
timer_settime timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres clock_nanosleep
statfs64 fstatfs64 tgkill utimes arm_fadvise64_64 pciconfig_iobase pciconfig_read pciconfig_write mq_open mq_unlink
mq_timedsend mq_timedreceive mq_notify mq_getsetattr waitid socket bind connect listen accept getsockname getpeername
socketpair send sendto recv recvfrom shutdown setsockopt getsockopt sendmsg recvmsg semop semget semctl msgsnd msgrcv
msgget msgctl shmat shmdt shmget shmctl add_key request_key keyctl semtimedop vserver ioprio_set ioprio_get
inotify_init inotify_add_watch inotify_rm_watch mbind get_mempolicy set_mempolicy openat mkdirat mknodat fchownat
futimesat fstatat64 unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll unshare
set_robust_list get_robust_list splice arm_sync_file_range tee vmsplice move_pages getcpu epoll_pwait kexec_load
utimensat signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime signalfd4 eventfd2 epoll_create1
dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg accept4 fanotify_init fanotify_mark
prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns process_vm_readv process_vm_writev
kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create bpf execveat userfaultfd
membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx rseq io_pgetevents
migrate_pages kexec_file_load -
"""
_S390X = """
0: - 7: restart_syscall 13: - 16: - - - 23: - - - 28: - 31: - - 35: - 44: - brk - - 49: - - 53: - 56: - 58: - - 68: -
- - - 76: - 80: - - - 84: - 95: - 98: - 101: - 109: - lookup_dcookie 123: - 138: - - - 142: select 164: - - 170: - -
182: - 191: getrlimit - - - - - - lchown getuid getgid geteuid getegid setreuid setregid getgroups setgroups fchown
setresuid getresuid setresgid getresgid chown setuid setgid setfsuid setfsgid 221: - readahead 224: setxattr lsetxattr
fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr gettid
tkill futex sched_setaffinity sched_getaffinity tgkill - 249: epoll_create epoll_ctl epoll_wait set_tid_address
fadvise64 timer_create timer_settime timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime
clock_getres clock_nanosleep 265: statfs64 fstatfs64 remap_file_pages mbind get_mempolicy set_mempolicy mq_open
mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load add_key request_key keyctl waitid ioprio_set
ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat futimesat
newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll unshare set_robust_list
get_robust_list splice sync_file_range tee vmsplice move_pages getcpu epoll_pwait utimes fallocate utimensat signalfd
timerfd eventfd timerfd_create timerfd_settime timerfd_gettime signalfd4 eventfd2 inotify_init1 pipe2 dup3
epoll_create1 preadv pwritev rt_tgsigqueueinfo perf_event_open fanotify_init fanotify_mark prlimit64 name_to_handle_at
open_by_handle_at clock_adjtime syncfs setns process_vm_readv process_vm_writev s390_runtime_instr kcmp finit_module
sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create bpf s390_pci_mmio_write s390_pci_mmio_read
execveat userfaultfd membarrier recvmmsg sendmmsg 374: mlock2 copy_file_range preadv2 pwritev2 s390_guarded_storage
statx s390_sthyi kexec_file_load io_pgetevents rseq pkey_mprotect pkey_alloc pkey_free
"""
_POWERPC64 = """
113: vm86 166: query_module poll nfsservctl setresgid getresgid prctl rt_sigreturn rt_sigaction rt_sigprocmask
rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend pread64 pwrite64 chown getcwd capget capset sigaltstack
sendfile getpmsg putpmsg vfork ugetrlimit readahead - - - - - - pciconfig_read pciconfig_write pciconfig_iobase
multiplexer getdents64 pivot_root - madvise mincore gettid tkill setxattr lsetxattr fsetxattr getxattr lgetxattr
fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr futex sched_setaffinity
sched_getaffinity - tuxcall - io_setup io_destroy io_getevents io_submit io_cancel set_tid_address fadvise64
exit_group lookup_dcookie epoll_create epoll_ctl epoll_wait remap_file_pages timer_create timer_settime timer_gettime
timer_getoverrun timer_delete clock_settime clock_gettime clock_getres clock_nanosleep swapcontext tgkill utimes
statfs64 fstatfs64 255: rtas sys_debug_setcontext 258: migrate_pages mbind get_mempolicy set_mempolicy mq_open
mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load add_key request_key keyctl waitid ioprio_set
ioprio_get inotify_init inotify_add_watch inotify_rm_watch spu_run spu_create pselect6 ppoll unshare splice tee
vmsplice openat mkdirat mknodat fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat
faccessat get_robust_list set_robust_list move_pages getcpu epoll_pwait utimensat signalfd timerfd_create eventfd
sync_file_range2 fallocate subpage_prot timerfd_settime timerfd_gettime signalfd4 eventfd2 epoll_create1 dup3 pipe2
inotify_init1 perf_event_open preadv pwritev rt_tgsigqueueinfo fanotify_init fanotify_mark prlimit64 socket bind
connect listen accept getsockname getpeername socketpair send sendto recv recvfrom shutdown setsockopt getsockopt
sendmsg recvmsg recvmmsg accept4 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns
process_vm_readv process_vm_writev finit_module kcmp sched_setattr sched_getattr renameat2 seccomp getrandom
memfd_create bpf execveat switch_endian userfaultfd membarrier - - - - - - - - 378: mlock2 copy_file_range preadv2
pwritev2 kexec_file_load statx pkey_alloc pkey_free pkey_mprotect rseq io_pgetevents
"""
_X32 = """
512: rt_sigaction rt_sigreturn ioctl readv writev recvfrom sendmsg recvmsg execve ptrace rt_sigpending rt_sigtimedwait
rt_sigqueueinfo sigaltstack timer_create mq_notify kexec_load waitid set_robust_list get_robust_list vmsplice
move_pages preadv pwritev rt_tgsigqueueinfo recvmmsg sendmmsg process_vm_readv process_vm_writev setsockopt getsockopt
io_setup io_submit execveat preadv2 pwritev2
"""

X32_BIT = 1 << 30  # arch/x86/include/uapi/asm/unistd.h: __X32_SYSCALL_BIT
_64 = (_SHARED,)
_32 = (_TIME64, _SHARED)
_OLD = _FIRST_PORTS
_TABLES: dict[str, tuple[str, ...]] = {
    "x86_64": (_X86_64, *_64),
    "i386": (_OLD, _I386, *_32),
    "aarch64": (_GENERIC, *_64),
    "riscv64": (_GENERIC, *_64),
    "loongarch64": (_GENERIC, *_64),
    "arm": (_OLD, _ARM, *_32),
    "s390x": (_OLD, _S390X, *_64),
    "ppc64": (_OLD, _POWERPC64, *_64),
}
_ALIASES = (
    (re.compile(r"amd64"), "x86_64"),
    (re.compile(r"i[3-6]86|x86"), "i386"),
    (re.compile(r"arm64"), "aarch64"),
    (re.compile(r"arm.*"), "arm"),
    (re.compile(r"s390"), "s390x"),
    (re.compile(r"ppc64le|powerpc.*"), "ppc64"),
)
"""Other names of architectures in `uname -m` and perf's header (pattern), each with its key in _TABLES."""
_COMPAT = {"x86_64": "i386", "aarch64": "arm"}
_COMPAT_ENTRY = re.compile(
    r"(?:__)?do_(?:fast_syscall_32|int80_emulation|int80_syscall_32|SYSENTER_32)|entry_(?:INT80|SYSENTER|SYSCALL)"
    r"_compat.*|int80_emulation|asm_int80_emulation|do_el0_svc_compat|el0_svc_compat|el0t_32_sync.*"
)


def syscall_names(arch: str, *, compat: bool = False) -> Mapping[int, str]:
    """Return number → name of system calls on `arch` (`uname -m`), of 32-bit programs if `compat`; {} if unknown."""
    name = next((table for pattern, table in _ALIASES if pattern.fullmatch(arch)), arch)
    return _names(_COMPAT.get(name, name) if compat else name)


def syscall_number(name: str, arch: str) -> int:
    """Return the number of a system call on an architecture (`uname -m`); raise ValueError if it has none."""
    return min(number for number, call_name in syscall_names(arch).items() if call_name == name)  # x32 is above


def is_compat_entry(function: str) -> bool:
    """Return True for a function of the kernel through which only system calls of 32-bit programs pass."""
    return _COMPAT_ENTRY.fullmatch(function) is not None


@functools.cache
def _names(arch: str) -> Mapping[int, str]:
    names = {number: name for text in _TABLES.get(arch, ()) for number, name in _numbered(text).items()}
    names = {number: name for number, name in names.items() if name != "-"}
    if arch == "x86_64":
        own = _numbered(_X32)
        shared = {number: name for number, name in names.items() if name not in own.values()}
        names |= {X32_BIT | number: name for number, name in (shared | own).items()}
    return names


def _numbered(text: str) -> dict[int, str]:
    names, number = dict[int, str](), 0
    for word in text.split():
        if word.endswith(":"):
            number = int(word[:-1])
        else:
            names[number] = word
            number += 1
    return names


SYSCALL_NUMBERS = 512  # entries of the BPF map of `call_numbers`; the numbers of x32 are larger

_DESCRIPTOR = """
read write pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2 recvfrom recvmsg recvmmsg sendto
sendmsg sendmmsg connect accept accept4 shutdown fsync fdatasync flock ftruncate fallocate fadvise64 readahead
getdents getdents64 ioctl fcntl lseek fstat newfstat fchmod fchown syncfs sync_file_range splice tee vmsplice
copy_file_range io_uring_enter mq_timedsend mq_timedreceive fsetxattr fgetxattr
""".split()
_PATH = "open stat lstat truncate mkdir rmdir unlink rename creat chmod execve".split()
_PATH_AT = "openat openat2 newfstatat statx mkdirat unlinkat renameat renameat2 execveat".split()

CALLS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(_DESCRIPTOR, ("descriptor", "none")),
    **dict.fromkeys(_PATH, ("path", "none")),
    **dict.fromkeys(_PATH_AT, ("path_at", "none")),
    "sendfile": ("send_file", "none"),
    "poll": ("poll", "ms_2"),
    "ppoll": ("poll", "spec_2"),
    "select": ("select", "none"),
    "pselect6": ("select", "none"),
    "epoll_wait": ("epoll", "ms_3"),
    "epoll_pwait": ("epoll", "ms_3"),
    "epoll_pwait2": ("epoll", "spec_3"),
    "futex": ("futex", "futex"),
    "futex_waitv": ("futexes", "none"),
    "wait4": ("child", "none"),
    "waitid": ("child_id", "none"),
    **dict.fromkeys(("clone", "clone3", "vfork"), ("fork", "none")),
    "semop": ("semaphores", "none"),
    "semtimedop": ("semaphores", "none"),
    "msgsnd": ("messages", "none"),
    "msgrcv": ("messages", "none"),
    "nanosleep": ("none", "spec_0"),
    "clock_nanosleep": ("none", "clock"),
}
"""System call → (what its arguments name: offcpu_call_kind, which argument is its time limit: offcpu_timeout)."""


def call_numbers(arch: str) -> dict[int, tuple[str, str]]:
    """Return number → (what its arguments name, its time limit), on `arch` (`uname -m`), of the calls in CALLS."""
    names = {number: name for number, name in syscall_names(arch).items() if number < SYSCALL_NUMBERS}
    return {number: CALLS[name] for number, name in names.items() if name in CALLS}
