/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the BPF program and user space have in common. perf_offcpu/collect/bpf/header.py reads the enumerations
 * and structures below, so that nothing is written down twice: one member a line, of unsigned types.
 */
#ifndef OFFCPU_OFF_CPU_H
#define OFFCPU_OFF_CPU_H

/* What happened to waits, by cause; each counter holds a number of events and, where it is known, their ns. */
enum offcpu_counter {
	OFFCPU_SAMPLES,			/* waits sent as samples */
	OFFCPU_ONCPU_SAMPLES,		/* on-CPU samples of recorded tasks, let through by offcpu_filter */
	OFFCPU_RING_FULL,		/* samples that found the perf ring full: their waits went into the sums */
	OFFCPU_OUTPUT_FAILED,		/* samples that found no perf event on their CPU: likewise */
	OFFCPU_SUM_MAP_FULL,		/* short waits sent as samples, because the map of sums was full */
	OFFCPU_STACK_MAP_FULL,		/* waits summed without stack, because the map of stacks was full */
	OFFCPU_STACK_COLLISION,		/* waits summed without stack: another stack has the same hash */
	OFFCPU_WAITS_LOST,		/* waits neither sent nor summed */
	OFFCPU_USER_STACK_FAILED,	/* user stacks that could not be walked */
	OFFCPU_KERNEL_STACK_FAILED,	/* kernel stacks that could not be walked */
	OFFCPU_STORAGE_FAILED,		/* switch-outs and births not noted: no memory for the task */
	OFFCPU_ENDS_MISSED,		/* waits whose end was not traced (seen when the task waits again) */
	OFFCPU_BEGINS_MISSED,		/* times off the CPU whose begin was not traced (seen at their end) */
	OFFCPU_WAKEUPS_MISSED,		/* waits whose wake-up was not traced: their run-queue delay is not known */
	OFFCPU_TOO_SHORT,		/* waits left out, because they are shorter than the user wants to know */
	OFFCPU_DROPPED,			/* waits under the threshold, left out because the user wants no sums */
	OFFCPU_RATE_LIMITED,		/* waits over the threshold, summed because the rate of samples is limited */
	OFFCPU_BUDGETS_LOST,		/* threads that ended and whose budget found no room */
	OFFCPU_SNAPSHOTS,		/* short waits sent with a copy of their stack, the first of their callers */
	OFFCPU_SNAPSHOTS_LOST,		/* those that found no room in the ring: their waits went into the sums */
	OFFCPU_COUNTERS			/* how many there are */
};

/* A target of the map `targets`. */
enum offcpu_target {
	OFFCPU_TARGET_ACTIVE,		/* recorded */
	OFFCPU_TARGET_ARMED		/* recorded once it calls exec */
};

/* What the ids of the map `targets` are. */
enum offcpu_target_kind {
	OFFCPU_PROCESS,
	OFFCPU_THREAD,
	OFFCPU_USER,
	OFFCPU_CPU
};

struct offcpu_target_key {
	u32 kind;
	u32 id;
};

struct offcpu_comm {
	u8 text[16];			/* TASK_COMM_LEN */
};

/* What a thread does. Its time is kept by these; those from PREEMPTED on are waits, if the user wants them. */
enum offcpu_mode {
	OFFCPU_UNKNOWN,			/* not seen */
	OFFCPU_RUNNING,			/* on a CPU */
	OFFCPU_RUNNABLE,		/* waiting for a CPU after its wake-up or birth */
	OFFCPU_PREEMPTED,		/* waiting for a CPU after it was preempted, or yielded */
	OFFCPU_INTERRUPTIBLE,
	OFFCPU_UNINTERRUPTIBLE,
	OFFCPU_IDLE,			/* uninterruptible and no load: kernel threads that wait for work */
	OFFCPU_STOPPED,
	OFFCPU_TRACED,
	OFFCPU_OTHER,			/* parked, and what else there may be */
	OFFCPU_DEAD,
	OFFCPU_MODES			/* how many there are */
};

/* The switches that user space turns while the program is attached. */
struct offcpu_control {
	u32 enabled;
	u32 generation;			/* sums and stacks are kept under it: user space drains the past ones */
	u64 threshold_ns;		/* waits from here on are sent as samples, shorter ones summed */
	u64 begin_ns;			/* of the recording */
	u64 end_ns;
	u64 epoch;			/* rises with each file: copies of stacks from before are in another */
};

/* The threshold that rises by itself when there are more samples than the user wants. */
struct offcpu_rate {
	u64 window_ns;			/* begin of the time over which samples are counted */
	u64 threshold_ns;		/* 0, or what the waits of the control's threshold have to reach besides */
	u64 highest_ns;
	u64 sent;			/* samples in this window */
	u64 raised;			/* how often the threshold rose */
	u64 raised_in;			/* the window in which it last did */
};

struct offcpu_count {
	u64 events;
	u64 ns;
};

/* Short, because it is hashed at every wait: what else a sum is of stands in the sum, and is compared. */
struct offcpu_sum_key {
	u32 tid;
	u32 generation;
	u64 kind;			/* hash of state, syscall, flags, cgroup, stack and caller */
};

struct offcpu_sum {
	u64 stack;			/* hash of the user stack, 0 none */
	u64 caller;			/* of who called (callers.h), 0 not known */
	u64 cgroup;			/* 0 unknown */
	u32 state;			/* raw, at switch-out */
	s32 syscall;			/* OFFCPU_SYSCALL_* */
	u32 flags;			/* OFFCPU_PREEMPTED_WAIT, OFFCPU_YIELDED */
	u32 pid;			/* tgid */
	u64 total_ns;
	u64 count;
	u64 longest_ns;
	u64 first_switch_out_ns;
	u64 last_switch_in_ns;
	u64 runq_ns;			/* run-queue delay of the waits whose wake-up is known */
	u32 woken;			/* how many these are */
	u32 lost;			/* OFFCPU_LOST_*, of any wait */
};

struct offcpu_stack_key {
	u64 hash;			/* of the addresses, never 0 */
	u64 generation;
};

#define OFFCPU_FRAMES 127		/* PERF_MAX_STACK_DEPTH; also the mask of a frame count */

struct offcpu_stack {
	u16 nr;
	u16 lost;			/* OFFCPU_LOST_* */
	u32 check;			/* a second hash, to tell apart two stacks that agree in `hash`; 0 not known */
	u64 ips[OFFCPU_FRAMES];		/* leaf first; meaningless from nr on */
};

#define OFFCPU_BUCKETS 16		/* room for OFFCPU_MODES, a power of two */

/* What a thread did with its time: the sum of `ns` is end - begin. */
struct offcpu_budget {
	u32 pid;
	u32 tid;
	u64 begin_ns;			/* birth, or begin of the recording */
	u64 end_ns;			/* death, or end of the recording */
	u64 switches;			/* times that it left a CPU */
	u64 ns[OFFCPU_BUCKETS];		/* by enum offcpu_mode */
};

struct offcpu_budget_key {
	u32 tid;
	u32 generation;
	u64 begin_ns;
};

/* A thread at the end of the recording. Behind it: its budget, kernel and user frames (leaf first). */
struct offcpu_last {
	u32 pid;
	u32 tid;
	u32 mode;
	u32 waits;			/* 1: off the CPU, in a state that the user wants */
	u32 state;
	s32 syscall;
	u32 flags;			/* OFFCPU_PREEMPTED_WAIT, ... */
	u32 lost;
	u32 waker_pid;
	u32 waker_tid;
	u64 switch_out_ns;
	u64 wakeup_ns;
	u64 cgroup;
	u64 ip;				/* user registers, 0 of kernel threads */
	u64 sp;
	u64 fp;
	u32 nr_kernel;
	u32 nr_user;
};

/*
 * The fixed part of the payload's extension. Its members are the rows of the table EXTENSION in
 * perf_offcpu/abi/offcpu.py: same names, same order. A new member goes to the end, and so does its row.
 */
struct offcpu_extension {
	u32 magic;			/* OFFCPU_MAGIC */
	u16 version;			/* OFFCPU_VERSION */
	u16 size;			/* OFFCPU_EXTENSION_SIZE: later versions of this struct are longer */
	u32 kind;			/* OFFCPU_KIND_* */
	u16 waker_offset;		/* from `magic` to the waker's callchain, in bytes */
	u16 waker_nr;			/* words of the waker's callchain, 0 none */
	u32 flags;			/* OFFCPU_PREEMPTED_WAIT, ... */
	u32 lost;			/* OFFCPU_LOST_* */
	u32 state;			/* raw, at switch-out */
	s32 syscall;			/* OFFCPU_SYSCALL_* */
	u32 waker_pid;			/* or OFFCPU_NO_ID */
	u32 waker_tid;
	u64 wakeup_ns;			/* or OFFCPU_NOT_KNOWN, as all times here */
	u64 switch_out_ns;
	u64 count;			/* number of waits */
	u64 longest_ns;
	u64 runq_ns;
	u64 caller;			/* hash of who called (callers.h), 0 not known */
	u8 end[];
};

#define OFFCPU_MAGIC 0x5043464f		/* "OFCP" */
#define OFFCPU_VERSION 2
#define OFFCPU_EXTENSION_SIZE offsetof(struct offcpu_extension, end)
#define OFFCPU_EXTENSION_WORDS (sizeof(struct offcpu_extension) / sizeof(u64))
#define OFFCPU_KIND_WAIT 1
#define OFFCPU_KIND_SUM 2
#define OFFCPU_KIND_BEGAN_BEFORE 4
#define OFFCPU_PREEMPTED_WAIT 1		/* flags: the thread could have gone on */
#define OFFCPU_WAKER_INTERRUPT 2	/* woken from an interrupt: the waker is what that interrupted */
#define OFFCPU_YIELDED 4		/* with PREEMPTED_WAIT: it gave up the CPU by itself */
#define OFFCPU_BEGAN_BEFORE 8		/* the wait began before the recording */
#define OFFCPU_NOT_KNOWN (~0ULL)
#define OFFCPU_NO_ID (~0U)
#define OFFCPU_SYSCALL_NONE (-1)
#define OFFCPU_SYSCALL_UNKNOWN (-2)
#define OFFCPU_LOST_USER_STACK 1
#define OFFCPU_LOST_KERNEL_STACK 2
#define OFFCPU_LOST_USER_CUT 4
#define OFFCPU_LOST_KERNEL_CUT 8

#endif
