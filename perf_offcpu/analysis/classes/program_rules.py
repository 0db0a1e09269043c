# SPDX-License-Identifier: Apache-2.0
"""Declare and apply rules of programs: the meaning of waits in functions of well-known programs.

The kernel sees a futex or an epoll_wait. Only functions of the program show that a postgres backend sleeps in
epoll for a row lock, or that Java enters monitors through a condition variable. The first rule that fits a
wait decides; rules of the user (`Profile.rules`) come before this table. Documentation/wait-classes.md has a
table made from this one, and the form of a user's file.

Sources: names of functions are those of postgres 12 to 18, JDK 11 to 25, CPython 3.8 to 3.14, Go 1.18 to
1.25, libuv 1.x, nginx 1.18 to 1.28, redis 6 to 8, Ruby 3.1 to 3.3 and glibc 2.31 to 2.42.
"""

import functools
import re
from collections.abc import Sequence

from perf_offcpu.analysis.classes.wait_classes import BY_LABEL, KEPT_NAMES, WaitClass, matches
from perf_offcpu.model.profile import ProgramRule

_BLOCKED = "lock poll pipe network sleep other"

_counted, _for_work = (functools.partial(ProgramRule, for_work=for_work) for for_work in (False, True))

PROGRAM_RULES = (
    _counted(
        "glibc",
        "the mutex of a condition variable, after the signal has come",
        r"_*pthread_mutex_cond_lock\w*",
        waits="lock",
    ),
    _counted(
        "kernel",
        "a file system that is frozen (fsfreeze, a snapshot)",
        "percpu_rwsem_wait __percpu_down_read",
        callers=r"k?vfs_\w+ mnt_want_write\w* sb_start_\w+ \w+_(start_write|page_mkwrite) do_iter_\w+ io_\w+",
        waits="lock",
        wait_class="disk",
    ),
    _counted(
        "kernel",
        "its cgroup's memory limit (memory.max, memory.high)",
        r"try_to_free_mem_cgroup_pages _*mem_cgroup_handle_over_high mem_cgroup_o(om|ut_of_memory)\w*",
        waits="fault disk lock other",
    ),
    _counted(
        "kernel",
        "free memory (the whole machine has none)",
        "try_to_free_pages throttle_direct_reclaim",
        waits="fault disk lock other",
    ),
    _for_work(
        "JVM",
        "the end of the program, in the thread that started it",
        r"\[libjli\.so\] CallJavaMainInNewThread JVMInit",
        waits="lock child",
    ),
    _counted("glibc", "a thread to end", r"_*pthread_(timed|clock)?join\w*", waits="lock", wait_class="child"),
    _counted("make", "a job to end", "jobserver_acquire", waits="poll pipe", wait_class="child"),
    _counted(
        "postgres",
        "a lightweight lock of shared memory",
        "LWLockAcquire(OrWait)? LWLockWaitForVar",
        waits=_BLOCKED,
        wait_class="lock",
    ),
    _counted(
        "postgres",
        "a heavyweight lock: a row, a table, a transaction, a buffer pin",
        r"ProcSleep ProcWaitForSignal LockBufferForCleanup",
        waits=_BLOCKED,
        wait_class="lock",
    ),
    _counted("postgres", "a standby that confirms a commit", "SyncRepWaitForLSN", waits=_BLOCKED, wait_class="network"),
    _counted(
        "postgres",
        "other processes of a parallel query",
        r"shm_mq_(send|receive)\w* WaitForParallelWorkersTo\w+ gather_readnext BarrierArriveAndWait",
        waits=_BLOCKED,
        wait_class="pipe",
    ),
    _counted(
        "postgres",
        "time to pass: pg_sleep(), the pace of a checkpoint or of a vacuum",
        "pg_sleep CheckpointWriteDelay vacuum_delay_point",
        waits=_BLOCKED,
        wait_class="sleep",
    ),
    _for_work(
        "postgres",
        "the next command of a client",
        "SocketBackend ReadCommand",
        waits="poll network pipe",
        wait_class="network",
    ),
    _counted(
        "postgres",
        "a client in the middle of a command",
        "secure_read secure_write internal_flush(_buffer)?",
        waits="poll network pipe",
        wait_class="network",
    ),
    _counted(
        "JVM",
        "a monitor (synchronized) that another thread holds",
        r"ObjectMonitor::(re)?[eE]nter\w* ObjectMonitor::spin_enter\w* ObjectSynchronizer::enter\w*",
        waits="lock",
    ),
    _counted(
        "JVM",
        "the end of a safepoint",
        r"SafepointSynchronize::\w+ SafepointMechanism::\w+ (Linux)?WaitBarrier\w*::wait",
        waits="lock",
    ),
    _counted(
        "JVM",
        "time to pass: Thread.sleep()",
        r"JavaThread::sleep\w* JVM_Sleep\w* os::(naked_)?(short_)?sleep",
        waits="lock",
        wait_class="sleep",
    ),
    _counted(
        "JVM",
        "a thread to end: Thread.join() (frames of Java where perf-PID.map has them)",
        r".*java[./]lang[./]Thread;?\W+join\b.*",
        waits="lock",
        wait_class="child",
    ),
    _for_work("JVM", "notify() on a monitor", r"ObjectMonitor::wait ObjectSynchronizer::wait", waits="lock"),
    _for_work(
        "JVM",
        "the next task of a ForkJoinPool, also of the one that runs virtual threads",
        r".*\b(Unsafe|LockSupport)\W+park\w*\b.*",
        callers=r".*\bForkJoinPool\W+(runWorker|awaitWork)\b.* .*\bDelayScheduler\W+loop\b.*",
        waits="lock",
    ),
    _for_work(
        "JVM",
        "a condition of java.util.concurrent: a queue of work, a pool, a future",
        r".*AbstractQueuedSynchronizer\$ConditionObject.*",
        waits="lock",
    ),
    _counted(
        "JVM",
        "a lock of java.util.concurrent that another thread holds",
        r".*AbstractQueued(Long)?Synchronizer\W+(try)?[aA]cquire\w*.* .*ReentrantLock\W+lock.*",
        waits="lock",
    ),
    # of an interpreter without symbols: nothing else in it waits for a condition of pthreads
    _counted(
        "CPython", "the GIL", r"take_gil PyEval_(RestoreThread|AcquireThread) _PyThreadState_Attach", waits="lock"
    ),
    # of an interpreter without symbols: nothing else in it waits for a condition of pthreads
    _counted("CPython", "the GIL", "pthread_cond_(timed|clock)?wait", callers=r"\[(lib)?python3\S*\]", waits="lock"),
    _counted(
        "Ruby", "the interpreter lock (GVL), after the time slice", "rb_threadptr_execute_interrupts", waits="lock"
    ),
    _counted("Ruby", "a Mutex that another thread holds", "rb_mutex_lock", waits="lock"),
    ProgramRule(
        "Ruby",
        "a Queue, a condition or the interpreter lock (GVL)",
        "rb_native_cond_wait",
        waits="lock",
        wait_class="lock",
    ),
    _counted("Ruby", "time to pass: sleep()", "rb_thread_wait_for", waits="lock poll", wait_class="sleep"),
    _for_work(
        "MariaDB",
        "the next task of its pool",
        r"tpool::thread_pool_generic::(wait_for_tasks|get_task|worker_main)",
        waits="lock",
    ),
    _counted(
        "MariaDB",
        "a metadata lock: another statement uses the table",
        r"MDL_wait::timed_wait MDL_context::acquire_lock\w*",
        waits="lock",
    ),
    _counted(
        "MariaDB",
        "a lock of the storage engine: a row, a table",
        r"handler::(ha_)?(rnd|index|read|update|write|delete)_\w+ row_search_mvcc lock_wait\w*",
        waits="lock",
    ),
    _for_work(
        "CPython",
        "the next item of a SimpleQueue: thread pools of concurrent.futures",
        r"\[_queue\.cpython\S*\] _queue_SimpleQueue_get\w*",
        waits="lock",
    ),
    _counted(
        "CPython",
        "a connection of the pool: all are in use (SQLAlchemy, psycopg, redis-py, urllib3)",
        r"""
            QueuePool\._do_get\s\(impl\.py\) ConnectionPool\.getconn\s\(pool\.py\)
            BlockingConnectionPool\.get_connection\s\(connection\.py\)
            HTTPConnectionPool\._get_conn\s\(connectionpool\.py\)
        """,
        waits="lock",
    ),
    _for_work("CPython", "the next item of a queue", r"(Queue\.)?get\s\(queue\.py\)", waits="lock"),
    _counted("CPython", "room in a queue that is full", r"(Queue\.)?put\s\(queue\.py\)", waits="lock"),
    _counted(
        "CPython",
        "the next item of a queue of multiprocessing",
        r"((Joinable|Simple)?Queue\.)?get\s\(queues\.py\)",
        waits="lock pipe poll",
    ),
    _counted(
        "CPython",
        "a result of concurrent.futures or multiprocessing",
        r"""
            (Future\.)?(result|exception)\s\(_base\.py\) (wait|as_completed)\s\(_base\.py\)
            ((Apply|Map)Result\.(get|wait)|IMapIterator\.next)\s\(pool\.py\)
        """,
        waits="lock",
    ),
    _counted(
        "CPython",
        "a thread to end: Thread.join()",
        r"(Thread\.)?(join|_wait_for_tstate_lock)\s\(threading\.py\)",
        waits="lock",
    ),
    _counted(
        "CPython",
        "a Semaphore or Barrier of threading",
        r"(Semaphore\.acquire|Barrier\.\w+)\s\(threading\.py\)",
        waits="lock",
    ),
    _counted(
        "CPython",
        "a condition or an event of threading",
        r"((Condition|Event)\.)?wait\s\(threading\.py\)",
        waits="lock",
    ),
    _for_work(
        "gunicorn",
        "the next request, or a worker's signal",
        r"Arbiter\.sleep\s\(arbiter\.py\) SyncWorker\.(wait|accept)\s\(sync\.py\) ThreadWorker\.run\s\(gthread\.py\)",
        waits="poll network",
    ),
    _for_work(
        "CPython",
        "the next connection: socketserver, http.server, Django's runserver",
        r"(BaseServer\.)?serve_forever\s\(socketserver\.py\)",
        waits="poll",
    ),
    _counted(
        "CPython",
        "a lock, condition or queue of threading: native frames do not tell them apart, so it is not idle",
        r"PyThread_acquire_lock(_timed)? _?PyMutex_Lock\w* _PySemaphore_\w+ _PyParkingLot_Park",
        waits="lock",
    ),
    _counted("Go", "a lock of the runtime", r"runtime\.(lock2|lockWithRank|semasleep1?)", waits="lock"),
    _for_work(
        "Go",
        "a goroutine to run: a thread of the scheduler",
        r"runtime\.(stopm|mPark|findRunnable|findrunnable|templateThread|sysmon|gcBgMarkWorker\S*)",
        waits="lock poll sleep",
        wait_class="poll",
    ),
    _for_work(
        "libuv, Node",
        "the next event, or work for the pool",
        r"uv__io_poll uv__io_uring_\w+ uv_cond_(timed)?wait",
        waits="lock poll",
    ),
    _counted("nginx", "a lock that workers share", "ngx_shmtx_lock", waits=_BLOCKED, wait_class="lock"),
    _for_work(
        "nginx",
        "the next event, or work for the pool",
        r"ngx_(epoll|poll|select)_process_events ngx_process_events_and_timers ngx_thread_pool_cycle",
        waits="lock poll",
    ),
    _counted("redis", "the end of jobs in the background", r"bioDrainWorker waitForPendingBioJobs\w*", waits="lock"),
    _for_work("redis", "the next event or job", "aeApiPoll bioProcessBackgroundJobs IOThreadMain", waits="lock poll"),
)

DECORATION = re.compile(r"(?:\(.*|@.*|\.(?:abi0|abiinternal|constprop|isra|part|cold|llvm|lto_priv)\b.*)")
"""Suffixes of names of functions: parameters, a symbol version, a compiler's suffix."""
_NEVER = (WaitClass.RUNQUEUE, WaitClass.THROTTLED, WaitClass.STOPPED, WaitClass.FAULT)


class Rules:
    """Matches the rules on programs, the user's `rules` before those of the table, with functions and waits. Attribute
    `rules`: both, in order of precedence; bit i of a set of rules stands for `rules[i]`. `by_comm`: True if some rule
    has a condition on the name of the thread. `by_caller`: set of the rules with a condition on the caller of a
    function."""

    def __init__(self, rules: Sequence[ProgramRule] = ()) -> None:
        self.rules = (*rules, *PROGRAM_RULES)
        self.by_comm = any(rule.comm for rule in self.rules)
        self.by_caller = sum(1 << bit for bit, rule in enumerate(self.rules) if rule.callers)
        self._any_frame = " ".join(rule.frames for rule in self.rules if rule.frames)
        self._without_frames = sum(1 << bit for bit, rule in enumerate(self.rules) if not rule.frames)

    def of_function(self, function: str) -> int:
        """Return the set of the rules whose condition on frames a function name meets."""
        if not fits(self._any_frame, function):
            return 0
        ruled = ((bit, rule.frames) for bit, rule in enumerate(self.rules) if rule.frames)
        return sum(1 << bit for bit, frames in ruled if fits(frames, function))

    def of_caller(self, function: str) -> int:
        """Return the set of the rules of `by_caller` whose condition on callers a function name meets."""
        ruled = ((bit, rule.callers) for bit, rule in enumerate(self.rules) if rule.callers)
        return sum(1 << bit for bit, callers in ruled if fits(callers, function))

    def find(self, met: int, wait_class: WaitClass, syscall: str, comm: str) -> ProgramRule | None:
        """Return the first rule that fits a wait. `met`: set of the rules whose conditions on frames and callers the
        stack meets; `wait_class`: by the general rules; `syscall`: "" if unknown; `comm`: "" if `by_comm` is False."""
        met |= self._without_frames
        while met:
            bit = (met & -met).bit_length() - 1
            if _fits(self.rules[bit], wait_class, syscall, comm):
                return self.rules[bit]
            met &= met - 1
        return None


def _fits(rule: ProgramRule, wait_class: WaitClass, syscall: str, comm: str) -> bool:
    if rule.waits:
        if wait_class not in (BY_LABEL[label] for label in rule.waits.split()):
            return False
    elif wait_class in _NEVER:
        return False
    if rule.syscall and not matches(rule.syscall, syscall):
        return False
    return not rule.comm or matches(rule.comm, comm)


@functools.lru_cache(KEPT_NAMES)
def fits(rules: str, function: str) -> bool:
    """Return True if any of the rules matches the name of a function, with or without its suffixes."""
    return matches(rules, DECORATION.sub("", function)) or matches(rules, function)
