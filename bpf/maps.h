/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* State of the BPF program: task storage, a wait that has ended, per-CPU buffers, and the maps. */
#pragma once

#include <linux/compiler.h>
#include <linux/stddef.h>
#include "loops.h"
#include "off_cpu.h"
#include "period.h"

/* By names that are not bcc's, for each call of which it reads all symbols of the kernel. */
static int (*read_user)(void *to, u32 size, const void *from) = (void *)BPF_FUNC_probe_read_user;
static int (*read_kernel)(void *to, u32 n, const void *from) = (void *)BPF_FUNC_probe_read_kernel;
#define bpf_probe_read_user read_user
#define bpf_probe_read_kernel read_kernel

/* A member of a kernel structure at the offset that the running kernel's BTF has for it. */
#define FIELD(type, object, offset) (*(type *)((char *)(object) + (offset)))

/* bpf_rdonly_cast(), a kernel function: makes an address a pointer to a structure. */
#ifdef OFFCPU_READ_ONLY_CAST
static void *(*read_only_cast)(u64 address, u32 type) = (void *)OFFCPU_READ_ONLY_CAST;
#else
#define read_only_cast(address, type) ((void *)(address))
#endif
/* For one read from a trusted task, the verifier searches the names of all types up to 4 times. */
#define POINTER(task, offset) FIELD(void *, read_only_cast((u64)(task), OFFCPU_TASK_STRUCT), offset)

/* The key of a map that has one value. */
#define ONLY_KEY (&(u32){0})

/* User stacks are walked at switch-out, into the task's storage. */
#define WALK_AT_SWITCH_OUT (OFFCPU_SUM_STACKS || !OFFCPU_AT_EXIT)
/* With callers (callers.h) the check of a stack has another meaning. */
#define KEEPS_HASH (OFFCPU_SUM_STACKS && !OFFCPU_SUM_CALLERS)

struct task_struct;

#define BLOCK_WORDS 8

/* Where a task's code may be, and how far its stack pointer is from the end of the stack. */
struct offcpu_layout {
	u64 code, code_size;		/* text of its program */
	u64 top;			/* mm->mmap_base: libraries are mapped below it */
	u64 sp, thread;			/* the stack pointer, the thread pointer */
	u64 key;			/* of the program's addresses, and a leaf's caller */
};

#define TOP_WORDS 64		/* 32 do not reach the callers in redis (jemalloc, a buffer) */
#define TOP_BYTES (TOP_WORDS * sizeof(u64))
#define TOP_BLOCKS (TOP_WORDS / BLOCK_WORDS)
#define ALL_BLOCKS ((1ULL << TOP_BLOCKS) - 1)

/* The top of a user stack at the last wait, and the hashes made of it. */
struct offcpu_top {
	struct offcpu_layout layout;
	u64 chain;			/* hash of the chain of frame pointers, 0 unknown */
	u64 caller;			/* hash of chain, layout and words, 0 unknown */
	u64 walked;			/* number of bytes in which frames were found */
	u64 stale;			/* a bit for each block whose hash is out of date */
	u64 hashes[TOP_BLOCKS];		/* of possible return addresses in each block, 0 none */
	u64 words[TOP_WORDS];
};

struct offcpu_waker_stack {
	u32 first, nr_kernel;		/* kernel frames before the first belong to tracing */
	u64 kernel[OFFCPU_FRAMES];
	struct offcpu_stack user;
};

/* Task storage. Unless control.everybody is set, a task is recorded if it has one. */
struct offcpu_task {
	u64 since_ns;			/* when the present mode began */
	u64 wakeup_ns;			/* wake-up of the present wait, WOKEN, or 0 for none yet */
	u32 waker_pid, waker_tid;	/* or OFFCPU_NO_ID */
	u32 mode, prev_state;		/* enum offcpu_mode; raw state of the present wait */
	u32 flags, waker_flags;		/* OFFCPU_PREEMPTED_WAIT, ...; OFFCPU_WAKER_INTERRUPT */
	struct offcpu_phase phase;	/* of sampling: see period.h */
	u32 draws;			/* number of short waits whose stack was taken */
	u64 clock;			/* of the run queue, at the switch-out or when found */
	u64 queued_ns;			/* the kernel's run-queue delay of the task by then */
	u64 python_thread;		/* address of its state in Python, 0 unknown */
	u64 blocker;			/* lock of the kernel when the wait began, 0 none */
	u32 blocker_tid, holder_tid;	/* who held it, or one of the program, or OFFCPU_NO_ID */
	u64 kept_hash;			/* of `user`, valid if its check is not 0 */
	u32 kept_generation;
	/* One of each, or none: they are large. */
	struct offcpu_budget budget[OFFCPU_BUDGET];
	struct offcpu_stack user[WALK_AT_SWITCH_OUT];	/* user stack at switch-out */
	struct offcpu_top top[OFFCPU_SUM_CALLERS];	/* likewise */
	struct offcpu_waker_stack waker[OFFCPU_WAKER_STACKS];
};

/* Odd, with bits in no pattern: the first multiplier of MurmurHash3's fmix64(). */
#define HASH_MULTIPLIER 0xff51afd7ed558ccdULL

static __always_inline u64 mix(u64 hash, u64 word)
{
	hash = (hash ^ word) * HASH_MULTIPLIER;
	return hash ^ hash >> 32;
}

/*
 * A wait that has ended. It is in the memory of a map, of which the verifier knows nothing: so it
 * does not follow the code after a branch once more for each value that the branch leaves known.
 */
struct offcpu_wait {
	u64 switch_out_ns, switch_in_ns, wakeup_ns;	/* the last: 0 none */
	u64 ns;				/* its weight in a sample: the length, if not sampled */
	u64 length;
	u64 count;			/* 1; if sampled, the number of periods in the weight */
	u64 runq_ns;			/* or OFFCPU_NOT_KNOWN */
	u32 mode, prev_state, flags, pid, tid;
	s32 syscall;
	u64 cgroup;
	u64 blocker;			/* lock of the kernel that it waited for, 0 none */
	u64 object_id;			/* of a page fault, 0 none */
	u64 stack, caller;		/* for its sum: hashes of user stack and callers, 0 none */
	u64 copied;			/* number of the stack for its sample, 0 unknown */
	u64 hash;			/* of what was found in the stack, 0 unknown */
	u32 copy;			/* enum offcpu_copy */
	u32 waker_tid, generation;	/* 0 unknown; control.generation */
	u32 sampled;			/* 1: long enough for a sample, within the rate */
	u64 drawn;			/* ns for which its stack is taken, 0 it is not */
	u32 first;			/* see is_sum() */
	u32 lost, sample_lost;		/* OFFCPU_LOST_*: for its sum, for its sample */
};

/* What accounts a wait: pointers, which the verifier has to know. */
struct offcpu_run {
	void *ctx;
	const struct offcpu_control *ctl;
	struct task_struct *task;
	struct offcpu_task *storage;
	struct offcpu_stack *user;
	struct offcpu_wait *wait;
	struct offcpu_scratch *to;
};

/* The last switch of a CPU. */
struct offcpu_switch {
	u64 next;			/* address of the task that came to the CPU */
	u64 now;			/* 0 once used */
	u64 drawn;			/* with OFFCPU_SAMPLING: whether the wait is a sample */
	struct offcpu_wait wait;	/* of this task */
};

#define STACK_WORDS 128			/* mapped_files.h needs 70 in 6.18 */
#define CHAIN_WORDS (2 * (1 + OFFCPU_FRAMES))	/* two parts, each a marker and its frames */
#define TCP_WORDS 8			/* room for struct offcpu_tcp; a power of two */
#define SAMPLE_WORDS (CHAIN_WORDS + 1 + OFFCPU_EXTENSION_WORDS + CHAIN_WORDS + TCP_WORDS + \
		      (OFFCPU_PYTHON ? OFFCPU_PYTHON_FRAMES : 0))

/* A sample. It begins like struct offcpu_data of tools/perf/util/bpf_skel/off_cpu.bpf.c. */
struct offcpu_payload {
	u32 pid, tid;
	u64 offcpu_ns;
	u64 nr;				/* words of the callchain */
	u64 words[SAMPLE_WORDS];	/* callchain, cgroup id, struct offcpu_extension and its
					 * variable parts */
};

/* Room that the BPF stack of 512 bytes does not have. */
struct offcpu_scratch {
	struct offcpu_stack user[!WALK_AT_SWITCH_OUT];
	volatile u32 first;		/* kernel frames before this one belong to the scheduler */
	u64 kernel[OFFCPU_FRAMES];
	u32 nr_early, early_task;	/* frames in `kernel` from before the switch; their tid */
	u64 early_since_ns;		/* begin of the wait they belong to */
	struct offcpu_object object;
	volatile u32 end;		/* words of the sample */
	volatile u32 tcp_nr;		/* 0 if `tcp` is not of this wait */
	struct offcpu_tcp tcp;
	u64 stack[STACK_WORDS];		/* of the kernel, above the stack pointer of a sleeper */
	struct offcpu_payload sample;
};

#define IRQ_STACK_WORDS 96		/* process_backlog() is within the last 56 in 6.18 */
struct offcpu_irq_stack {
	u64 words[IRQ_STACK_WORDS];
};
BPF_TABLE("percpu_array", u32, struct offcpu_irq_stack, irq_stack, 1);

BPF_TASK_STORAGE(tasks, struct offcpu_task);
BPF_TABLE("array", u32, struct offcpu_control, control, 1);
BPF_TABLE("array", u32, struct offcpu_rate, rate, 1);
BPF_TABLE("percpu_array", u32, struct offcpu_count, counters, OFFCPU_COUNTERS);
BPF_TABLE("percpu_array", u32, struct offcpu_scratch, scratch, 1);
BPF_TABLE("percpu_array", u32, struct offcpu_switch, switched, 1);
BPF_TABLE("hash", struct offcpu_sum_key, struct offcpu_sum, sums, OFFCPU_SUMS);
BPF_TABLE("hash", struct offcpu_stack_key, struct offcpu_stack, stacks, OFFCPU_STACKS);
BPF_TABLE("hash", struct offcpu_budget_key, struct offcpu_budget, budgets, OFFCPU_BUDGETS);
BPF_TABLE("hash", struct offcpu_target_key, u32, targets, OFFCPU_TARGETS_MAX);
BPF_TABLE("hash", struct offcpu_comm, u32, comms, OFFCPU_TARGETS_MAX);
BPF_TABLE("hash", u64, u32, groups, OFFCPU_TARGETS_MAX);
BPF_PERF_OUTPUT(events);		/* with copies of control.copy_bytes, if any */
BPF_PERF_OUTPUT(events_bare);		/* the same rings, with other sizes: copies.h */
BPF_PERF_OUTPUT(events_quarter);
BPF_PERF_OUTPUT(events_python);		/* functions of on-CPU samples */
BPF_PERF_OUTPUT(events_double);
BPF_PERF_OUTPUT(events_fourfold);

/* A number in the kernel's memory; 0 if it cannot be read, which is noted in an object, if any. */
static __always_inline u64 kernel_bytes(struct offcpu_object *to, u64 address, u32 size)
{
	u64 word = 0;

	if (bpf_probe_read_kernel(&word, size, (void *)address) && to)
		to->lost |= OFFCPU_OBJECT_FAULT;
	return word;
}

#define kernel_word(to, address) kernel_bytes(to, address, sizeof(u64))

/* A word in the memory of `current`, likewise. */
static __always_inline u64 user_word(struct offcpu_object *to, u64 address)
{
	u64 word = 0;

	if (bpf_probe_read_user(&word, sizeof(word), (void *)address) && to)
		to->lost |= OFFCPU_OBJECT_FAULT;
	return word;
}

static __always_inline void count(u32 which, u64 ns)
{
	struct offcpu_count *counter = counters.lookup(&which);

	if (counter) {
		counter->events += 1;
		counter->ns += ns;
	}
}

static __always_inline struct offcpu_control *get_control(void)
{
	return control.lookup(ONLY_KEY);
}

/* Return the control while recording is enabled, else NULL. */
static __always_inline struct offcpu_control *enabled(void)
{
	struct offcpu_control *ctl = get_control();

	return ctl && ctl->enabled ? ctl : NULL;
}

/* The limit of the rate of samples; NULL for any number. */
static __always_inline struct offcpu_rate *rate_of(const struct offcpu_control *ctl)
{
	return ctl->max_rate ? rate.lookup(ONLY_KEY) : NULL;
}

/* Whether a short wait is sent, as a sum of one, with the first copy of its stack. */
static __always_inline bool is_sum(const struct offcpu_wait *wait)
{
	return (OFFCPU_SUM_CALLERS || OFFCPU_SUM_DRAWN) && wait->first;
}

/* Whether a mode counts as a wait. */
static __always_inline bool is_wanted(const struct offcpu_control *ctl, u32 mode)
{
	return ctl->states >> mode & 1;
}
