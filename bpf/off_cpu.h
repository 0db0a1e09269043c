/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Declarations shared by the BPF program and user space.
 * perf_offcpu/collect/bpf/header.py reads the enumerations and structures from this file. It
 * expects members of integer types with a size, and enumerators that count from 0.
 */
#pragma once

#include <linux/types.h>

/*
 * What happened to waits, by cause. Each counter holds a number of events and, where it is known,
 * the off-CPU time concerned. Each enumerator has a row of its name in perf_offcpu/losses.toml.
 */
enum offcpu_counter {
	OFFCPU_SAMPLES,			/* waits sent as samples */
	OFFCPU_ONCPU_SAMPLES,		/* on-CPU samples passed by offcpu_filter */
	OFFCPU_RING_FULL,		/* waits summed because the perf ring was full */
	OFFCPU_OUTPUT_FAILED,		/* waits summed because their CPU had no perf event */
	OFFCPU_SUM_MAP_FULL,		/* short waits sent because the map of sums was full */
	OFFCPU_STACK_MAP_FULL,		/* waits summed without stack: the map of stacks was full */
	OFFCPU_STACK_COLLISION,		/* waits summed without stack: two stacks have one hash */
	OFFCPU_WAITS_LOST,		/* waits neither sent nor summed */
	OFFCPU_USER_STACK_FAILED,	/* user stacks that could not be walked */
	OFFCPU_KERNEL_STACK_FAILED,	/* kernel stacks that could not be walked */
	OFFCPU_STORAGE_FAILED,		/* switch-outs and births not noted: no task storage */
	OFFCPU_ENDS_MISSED,		/* waits whose end was not traced */
	OFFCPU_BEGINS_MISSED,		/* times off the CPU whose start was not traced */
	OFFCPU_WAKEUPS_MISSED,		/* waits whose wake-up was not traced */
	OFFCPU_TOO_SHORT,		/* waits left out: shorter than control.min_block_ns */
	OFFCPU_DROPPED,			/* waits under the threshold, left out (drop_short) */
	OFFCPU_RATE_LIMITED,		/* waits over the threshold, summed because of max_rate */
	OFFCPU_BUDGETS_LOST,		/* ended threads whose budget found no room in its map */
	OFFCPU_SNAPSHOTS,		/* short waits sent with a copy of their stack */
	OFFCPU_SNAPSHOTS_LOST,		/* of these, summed because the ring was full */
	OFFCPU_COPIES_LIMITED,		/* copies cut or left out: control.copy_budget */
	OFFCPU_OBJECTS_CLOSED,		/* waits whose descriptor is not open */
	OFFCPU_OBJECTS_UNREADABLE,	/* waits whose object could not be read */
	OFFCPU_OBJECTS_COMPAT,		/* waits of 32-bit programs, whose arguments are not read */
	OFFCPU_OBJECTS_FULL,		/* objects not described: the queue was full */
	OFFCPU_EVENTS_TAKEN,		/* waits in epoll, after which nothing was ready */
	OFFCPU_UNSAMPLED,		/* waits that others stand for */
	OFFCPU_PYTHON_UNREADABLE,	/* waits with Python frames that cannot be read */
	OFFCPU_COUNTERS			/* number of counters */
};

/* Values of the map `targets`. */
enum offcpu_target {
	OFFCPU_TARGET_ACTIVE, OFFCPU_TARGET_ARMED	/* recorded, or from its next exec on */
};

/* What the ids in the map `targets` are. */
enum offcpu_target_kind {
	OFFCPU_PROCESS, OFFCPU_THREAD, OFFCPU_USER, OFFCPU_CPU
};

struct offcpu_target_key {
	u32 kind, id;			/* enum offcpu_target_kind */
};

struct offcpu_comm {
	u8 text[16];			/* TASK_COMM_LEN */
};

/*
 * What a thread does. Modes from OFFCPU_THROTTLED on are waits if control.states has their bit;
 * those after OFFCPU_PREEMPTED end with a wake-up.
 */
enum offcpu_mode {
	OFFCPU_UNKNOWN,			/* not observed */
	OFFCPU_RUNNING,			/* on a CPU */
	OFFCPU_RUNNABLE,		/* waiting for a CPU after its wake-up or birth */
	OFFCPU_THROTTLED,		/* its control group has used up its quota of CPU time */
	OFFCPU_PREEMPTED,		/* waiting for a CPU after it was preempted, or yielded */
	OFFCPU_INTERRUPTIBLE, OFFCPU_UNINTERRUPTIBLE,
	OFFCPU_IDLE,			/* TASK_IDLE: kernel threads that wait for work */
	OFFCPU_STOPPED, OFFCPU_TRACED,
	OFFCPU_OTHER,			/* parked, and all other states */
	OFFCPU_DEAD, OFFCPU_MODES			/* number of modes */
};

/* The event that sends a sample, by the size of its copy of the user stack. */
enum offcpu_copy {
	OFFCPU_COPY_FIRST,		/* control.copy_bytes */
	OFFCPU_COPY_BARE,		/* one word: a sample before has the copy */
	OFFCPU_COPY_QUARTER, OFFCPU_COPY_DOUBLE, OFFCPU_COPY_FOURFOLD, OFFCPU_COPIES_NR
};

/*
 * Numbers that differ from boot to boot, or from container to container: the loader writes them
 * into the instructions (late_value()). Sizes are 0 where the address is not known.
 */
enum offcpu_late {
	OFFCPU_SCHED_TEXT, OFFCPU_SCHED_TEXT_SIZE,	/* where the scheduler's code is */
	OFFCPU_LOCK_TEXT, OFFCPU_LOCK_TEXT_SIZE,	/* in it, where functions of locks are */
	OFFCPU_WAKE_UP, OFFCPU_WAKE_UP_SIZE,		/* try_to_wake_up() */
	OFFCPU_DO_SOFTIRQ, OFFCPU_DO_SOFTIRQ_SIZE,	/* do_softirq() */
	OFFCPU_BACKLOG, OFFCPU_BACKLOG_SIZE,		/* process_backlog() */
	OFFCPU_FOLIO_WAKE, OFFCPU_FOLIO_WAKE_SIZE,	/* wake_page_function() */
	OFFCPU_PID_LEVEL,		/* depth of the recorder's pid namespace, 0: the first */
	OFFCPU_PID_NAMESPACE		/* its inode */
};

/* The options that user space sets; it may change them while the program is attached. */
struct offcpu_control {
	u32 enabled, generation;	/* in the keys of sums, stacks and budgets: see maps.py */
	u64 threshold_ns;		/* longer waits are sent as samples, others summed */
	u64 period_ns;			/* of waiting for each sample, 0 for every wait */
	u64 min_block_ns;		/* shorter waits are left out */
	u64 begin_ns, end_ns, paused_ns;	/* of the recording; length of all its pauses */
	u64 epoch;			/* increases with each output file: see callers.h */
	u64 max_rate, window_ns;	/* samples in a window, 0 unlimited; length of a window */
	u64 copy_budget;		/* bytes of whole copies of stacks in a second */
	u64 hash_key;			/* random, of hashes of user stacks: see seed_of() */
	u64 zero;			/* always 0, unknown to the verifier: see loops.h */
	u32 states;			/* which modes are waits: bits by enum offcpu_mode */
	u32 copy_bytes;			/* size of copies of stacks, 0 none */
	u8 everybody, all_found;	/* all tasks are targets; all targets have a storage */
	u8 by_process, by_thread, by_user, by_cpu;	/* the map `targets` holds such ids */
	u8 by_comm;			/* the map `comms` holds names of threads */
	u8 kernel_threads;		/* kernel threads are recorded */
	u8 kernel_stacks;		/* samples have kernel stacks */
	u8 defer_user;			/* the perf core defers the user callchains of samples */
	u8 wakers;			/* wake-ups are traced */
	u8 drop_short;			/* waits under the threshold are left out */
	u8 copy_all;			/* samples do not rely on what was sent before */
	u8 objects, object_names;	/* samples have ids of objects; these, names and paths */
};

/* What the arguments of a system call name. */
enum offcpu_call_kind {
	OFFCPU_CALL_NONE, OFFCPU_CALL_DESCRIPTOR,		/* the first argument */
	OFFCPU_CALL_SEND_FILE,		/* the first, or in a disk wait the second */
	OFFCPU_CALL_POLL,		/* descriptors in memory, and their number */
	OFFCPU_CALL_FUTEX,		/* the address of a word, and an operation */
	OFFCPU_CALL_CHILD,		/* a pid, or which children (wait4) */
	OFFCPU_CALL_CHILD_ID,		/* the kind of an id, and the id (waitid) */
	OFFCPU_CALL_PATH, OFFCPU_CALL_PATH_AT,	/* the first, the second argument */
	OFFCPU_CALL_SEMAPHORES, OFFCPU_CALL_MESSAGES,	/* id of a System V set, or queue */
	OFFCPU_CALL_EPOLL,		/* the first: an epoll instance */
	OFFCPU_CALL_FUTEXES,		/* struct futex_waitv, and their number */
	OFFCPU_CALL_SELECT,		/* a number, and three sets in memory */
	OFFCPU_CALL_FORK		/* the child, if the caller waits for it as in vfork() */
};

/* After which time a system call ends by itself: where the time is, and in which form. */
enum offcpu_timeout {
	OFFCPU_TIMEOUT_NONE,
	OFFCPU_TIMEOUT_MS_2, OFFCPU_TIMEOUT_MS_3,	/* third and fourth argument, ms */
	/* struct timespec at the first, third and fourth argument */
	OFFCPU_TIMEOUT_SPEC_0, OFFCPU_TIMEOUT_SPEC_2, OFFCPU_TIMEOUT_SPEC_3,
	OFFCPU_TIMEOUT_CLOCK,		/* clock_nanosleep: clock, flags, struct timespec */
	OFFCPU_TIMEOUT_FUTEX		/* as the operation says */
};

/* A system call: what its arguments are. */
struct offcpu_call {
	u16 what, timeout;		/* enum offcpu_call_kind; enum offcpu_timeout */
};

/* Kinds of objects; ObjectKind in perf_offcpu/abi/wait_objects.py. */
enum offcpu_object_kind {
	OFFCPU_OBJECT_NONE,
	OFFCPU_OBJECT_FILE, OFFCPU_OBJECT_DIRECTORY, OFFCPU_OBJECT_CHARACTER, OFFCPU_OBJECT_BLOCK,
	OFFCPU_OBJECT_PIPE, OFFCPU_OBJECT_SOCKET, OFFCPU_OBJECT_ANONYMOUS,
	OFFCPU_OBJECT_FUTEX, OFFCPU_OBJECT_DESCRIPTORS, OFFCPU_OBJECT_PROCESS,
	OFFCPU_OBJECT_SEMAPHORES, OFFCPU_OBJECT_MESSAGES, OFFCPU_OBJECT_PATH,
	OFFCPU_OBJECT_KERNEL_LOCK
};

/* What a lock of the kernel is, in the two lowest bits of task->blocker (linux/hung_task.h). */
enum offcpu_lock_type {
	OFFCPU_LOCK_MUTEX, OFFCPU_LOCK_SEMAPHORE,
	OFFCPU_LOCK_READ, OFFCPU_LOCK_WRITE	/* of a rw_semaphore */
};

/* What it protects. */
enum offcpu_lock_role {
	OFFCPU_LOCK_UNKNOWN, OFFCPU_LOCK_MMAP,		/* mm->mmap_lock of the waiting process */
	OFFCPU_LOCK_INODE,		/* inode->i_rwsem of the descriptor */
	OFFCPU_LOCK_MAPPING,		/* its mapping's invalidate_lock */
	OFFCPU_LOCK_SUPER,		/* s_umount of its file system */
	OFFCPU_LOCK_RENAME,		/* s_vfs_rename_mutex of its file system */
	OFFCPU_LOCK_PIPE		/* of the descriptor */
};

#define OFFCPU_NAME_BYTES 256
#define OFFCPU_POLLED 1024		/* waits in poll(), not over, whose descriptor is told */

/* What a thread waits for. User space gets it once, when a file has the first wait for it. */
struct offcpu_object {
	u64 id;				/* 0 none */
	u64 asked_ns;			/* of the wait: or OFFCPU_NOT_KNOWN */
	u64 inode;
	u64 address;			/* of a futex or a lock */
	u64 peer_inode;			/* of a Unix socket's other end */
	u64 where, super;		/* where the BPF program reads more; the file system */
	u64 sp;				/* stack pointer of the thread */
	u32 kind, lost;			/* enum offcpu_object_kind; OFFCPU_OBJECT_* */
	u32 pid;			/* tgid of the thread */
	s32 fd;				/* its descriptor */
	s32 number;			/* pid, or of descriptors, System V id, value of a futex */
	u32 device;			/* of the file system, as the kernel has it */
	u32 in_sleeper;			/* memory of the thread can be read */
	u32 own_name;			/* of a Unix socket: the name is that of this end */
	u16 family;			/* AF_* */
	u16 protocol;			/* IPPROTO_*; of a futex, the operation of futex(); of a
					 * lock, enum offcpu_lock_role */
	u16 local_port, remote_port;
	u8 local[16], remote[16];
	u8 name[OFFCPU_NAME_BYTES];	/* a file, its directory, ... up to the root */
};

/* A wait in poll() that is not over. */
struct offcpu_polled {
	u64 switch_out_ns, tid;
};

#define OFFCPU_PYTHON_FRAMES 128	/* of a sample, leaf first; a power of two */

/*
 * Where a process keeps the state of Python, and what differs between versions, as numbers. See
 * collect/python/offsets.py. `mm`: of the process, from its first sample on.
 */
struct offcpu_python {
	u64 interpreters, mm, direct, tag, index_mask, relative;
	u32 next_interpreter, threads, next_thread, thread_id, thread_frame, c_frame;
	u32 frame_size, code, previous, instruction, unit_shift;
	u32 entry, entry_shift, least_shim, entry_each, entry_marked;
	u32 first_line, line_shift, file, name, lines, instructions, version;
	u32 compact, ascii_less, minor;
};

/* A Python function. User space gets it once, when a file has the first wait in it. */
struct offcpu_code {
	u64 id, name_flags, file_flags;	/* flags: of strings, with the width of characters */
	u32 pid, first_line, minor, name_size, file_size, lines_size;
	u8 name[256], file[512], lines[2048];
};

/* A second threshold, or period: it rises while there are more samples than control.max_rate. */
struct offcpu_rate {
	u64 window_ns;			/* begin of the window in which samples are counted */
	u64 threshold_ns, highest_ns;	/* waits must reach this one, too; 0 none */
	u64 sent;			/* samples in this window */
	u64 raised, raised_in;		/* how often the threshold rose; the last window in which */
	u64 copies_ns, copied;		/* begin of a second, and bytes of copies in it */
};

struct offcpu_count {
	u64 events, ns;
};

/* Short, because it is hashed at every wait. The sum holds the rest of its identity. */
struct offcpu_sum_key {
	u32 tid, generation;
	u64 kind;			/* hash of state, syscall, flags, cgroup, stack, caller */
};

struct offcpu_sum {
	u64 stack, caller;		/* hashes of user stack and callers (callers.h), 0 none */
	u64 cgroup, object_id;		/* 0 unknown; of page faults, 0 none */
	u32 state;			/* raw, at switch-out */
	s32 syscall;			/* OFFCPU_SYSCALL_* */
	u32 flags;			/* PREEMPTED_WAIT, YIELDED, THROTTLED_WAIT */
	u32 pid;			/* tgid */
	u64 total_ns, count, longest_ns;
	u64 first_switch_out_ns, last_switch_in_ns;
	u64 runq_ns;			/* run-queue delay of the waits whose wake-up is known */
	u32 woken;			/* number of these waits */
	u32 lost;			/* OFFCPU_LOST_*, of any of its waits */
};

struct offcpu_stack_key {
	u64 hash, generation;		/* hash of the addresses, never 0 */
};

#define OFFCPU_FRAMES 127		/* PERF_MAX_STACK_DEPTH; also the mask of a frame count */

struct offcpu_stack {
	u16 nr, lost;			/* frames; OFFCPU_LOST_* */
	u32 check;			/* second hash, for stacks with one hash; 0 unknown */
	u64 ips[OFFCPU_FRAMES];		/* leaf first; undefined from nr on */
};

#define OFFCPU_BUCKETS 16		/* a power of two, at least OFFCPU_MODES */

/*
 * How a thread spent its time. The sum of `ns` is end_ns - begin_ns. If the thread has switched,
 * user space corrects `ns` by the kernel's own figures (collect/kernel_totals/budgets.py), which
 * are 0 where the kernel has none.
 */
struct offcpu_budget {
	u32 pid, tid;
	u32 own_pid, own_tid;		/* in the thread's own pid namespace, 0 not known */
	u64 begin_ns, end_ns;		/* birth and death, or begin and end of the recording */
	u64 switches;			/* number of times that it left a CPU */
	u64 ran_before_ns;		/* the kernel's own time on CPUs when the budget began */
	u64 ran_ns;			/* the same when the thread last left a CPU */
	u64 queued_before_ns, queued_ns;	/* the kernel's own run-queue delay, likewise */
	u64 ns[OFFCPU_BUCKETS];		/* by enum offcpu_mode */
};

struct offcpu_budget_key {
	u32 tid, generation;
	u64 begin_ns;
};

#define OFFCPU_TCP_NR 12		/* members of struct offcpu_tcp */

/*
 * Facts about the TCP connection that a wait was for, when it ended: the rows of the table TCP in
 * perf_offcpu/abi/offcpu.py. Times in ticks are counted back from then.
 */
struct offcpu_tcp {
	u32 state;			/* enum in net/tcp_states.h */
	u32 tick_us;			/* length of a tick */
	u32 srtt_us, min_rtt_us, rtt_us;	/* the last: of the last segment acknowledged */
	u32 retransmits;		/* timeouts of what is not acknowledged yet */
	u32 total_retrans;		/* segments retransmitted since the connection began */
	u32 packets_out;		/* segments not acknowledged yet */
	u32 segments_in;		/* segments with data received */
	u32 sent_ticks, received_ticks;	/* since the last data */
	u32 window_ticks;		/* in which the peer's window was full, since the begin */
};

#define OFFCPU_REGS 34			/* words of struct pt_regs on arm64 up to pc; x86 has 21 */

/*
 * A thread at the end of the recording. Its budget (with OFFCPU_BUDGET), kernel frames and user
 * frames follow, leaf first.
 */
struct offcpu_last {
	u32 pid, tid, mode;
	u32 waits;			/* 1: off the CPU, in one of control.states */
	u32 state;
	s32 syscall;
	u32 flags, lost;		/* OFFCPU_PREEMPTED_WAIT, ...; OFFCPU_LOST_* */
	u32 waker_pid, waker_tid;	/* or OFFCPU_NO_ID */
	u64 switch_out_ns, wakeup_ns, cgroup;	/* 0 none */
	u64 nr_switches;		/* unchanged while it waits */
	u64 queued_ns;			/* the kernel's own run-queue delay up to its last run */
	u64 stack_end;			/* of user mode, 0 unknown */
	u64 object_id, asked_ns;	/* 0 none; or OFFCPU_NOT_KNOWN */
	u32 object_lost, holder_tid;	/* OFFCPU_OBJECT_*; or OFFCPU_NO_ID */
	u32 tcp_nr;			/* OFFCPU_TCP_NR, or 0: no TCP connection */
	u32 tcp[OFFCPU_TCP_NR];		/* struct offcpu_tcp */
	u64 regs[OFFCPU_REGS];		/* struct pt_regs of user mode, 0 for kernel threads */
	u32 nr_kernel, nr_user;
};

/*
 * The fixed part of the payload's extension. Its members are the rows of the table EXTENSION in
 * perf_offcpu/abi/offcpu.py, with the same names in the same order. New ones go to the end.
 */
struct offcpu_extension {
	u32 magic;			/* OFFCPU_MAGIC */
	u16 version;			/* OFFCPU_VERSION */
	u16 size;			/* OFFCPU_EXTENSION_SIZE: later versions are longer */
	u32 kind;			/* OFFCPU_KIND_* */
	u16 waker_offset;		/* from `magic` to the waker's callchain, in bytes */
	u16 waker_nr;			/* words of the waker's callchain, 0 none */
	u32 flags, lost;		/* OFFCPU_PREEMPTED_WAIT, ...; OFFCPU_LOST_* */
	u32 state;			/* raw, at switch-out */
	s32 syscall;			/* OFFCPU_SYSCALL_* */
	u32 waker_pid, waker_tid;	/* or OFFCPU_NO_ID */
	u64 wakeup_ns, switch_out_ns;	/* or OFFCPU_NOT_KNOWN, like all times here */
	u64 count, longest_ns, runq_ns;	/* count: number of waits */
	u64 caller;			/* hash of the stack or the callers, 0 unknown */
	u64 object_id;			/* 0 none or unknown */
	u64 asked_ns;			/* time after which the system call was to end by itself */
	u32 holder_tid, object_lost;	/* of the lock, or OFFCPU_NO_ID; OFFCPU_OBJECT_* */
	u32 tcp_offset;			/* from `magic` to struct offcpu_tcp, in bytes */
	u32 tcp_nr;			/* u32 words of it, 0 none: later versions have more */
	u32 python_offset;		/* from `magic` to Python frames, in bytes */
	u32 python_nr;			/* u64 words of these, one a frame, leaf first */
	u8 end[];
};

#define OFFCPU_MAGIC 0x5043464f		/* "OFCP" */
#define OFFCPU_VERSION 2
#define OFFCPU_EXTENSION_SIZE offsetof(struct offcpu_extension, end)
#define OFFCPU_EXTENSION_WORDS (sizeof(struct offcpu_extension) / sizeof(u64))

enum { OFFCPU_KIND_WAIT = 1, OFFCPU_KIND_SUM = 2, OFFCPU_KIND_BEGAN_BEFORE = 4,
       OFFCPU_KIND_ON_CPU = 5 };

/* flags */
#define OFFCPU_PREEMPTED_WAIT 1		/* the thread stayed runnable */
#define OFFCPU_WAKER_INTERRUPT 2	/* woken from an interrupt: the waker is the task it hit */
#define OFFCPU_YIELDED 4		/* with PREEMPTED_WAIT: it gave up the CPU by itself */
#define OFFCPU_BEGAN_BEFORE 8		/* the wait began before the recording */
#define OFFCPU_THROTTLED_WAIT 16	/* with PREEMPTED_WAIT: for its group's quota of CPU time */
#define OFFCPU_SAMPLED_WAIT 32		/* stands for others: the weight is no length */
#define OFFCPU_DRAWN 64			/* of a sum: weight of the waits drawn for their stack */
#define OFFCPU_OF_SEVERAL 128		/* in poll() or select() of several descriptors */

/* lost */
enum { OFFCPU_LOST_USER_STACK = 1, OFFCPU_LOST_KERNEL_STACK = 2, OFFCPU_LOST_USER_CUT = 4,
       OFFCPU_LOST_KERNEL_CUT = 8 };

/* object_lost */
enum { OFFCPU_OBJECT_CLOSED = 1, OFFCPU_OBJECT_FAULT = 2, OFFCPU_OBJECT_COMPAT = 4,
       OFFCPU_OBJECT_FULL = 8, OFFCPU_OBJECT_TAKEN = 16 };

#define OFFCPU_NOT_KNOWN (~0ULL)
#define OFFCPU_NO_ID (~0U)
enum { OFFCPU_SYSCALL_NONE = -1, OFFCPU_SYSCALL_UNKNOWN = -2, OFFCPU_SYSCALL_COMPAT = 1 << 29 };
