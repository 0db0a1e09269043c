/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the BPF program keeps: of each task, of a wait that has just ended, and the maps.
 */
#define __inline static inline __attribute__((always_inline))
#define FIELD(type, object, offset) (*(type *)((char *)(object) + (offset)))

/* Keeps clang from rewriting a loop's bounds into a form that the verifier cannot follow. */
#define BOUNDED(i) asm volatile("" : "+r"(i))

/* Whether user stacks are walked at switch-out, into the task's storage. */
#define WALK_AT_SWITCH_OUT (OFFCPU_SUM_STACKS || !OFFCPU_AT_EXIT)

/* Whether a state or anything else that has a mode counts as a wait. */
#define WANTED(mode) (OFFCPU_STATES >> (mode) & 1)

struct task_struct;

#if OFFCPU_SUM_CALLERS
#define TOP_WORDS 64			/* 32 do not reach the callers in redis (jemalloc, a buffer on the stack) */
#define TOP_BYTES (TOP_WORDS * sizeof(u64))
#define BLOCK_WORDS 8
#define TOP_BLOCKS (TOP_WORDS / BLOCK_WORDS)
#define ALL_BLOCKS ((1ULL << TOP_BLOCKS) - 1)

/* Where a task's code may be, and how far its stack is from its end. */
struct offcpu_layout {
	u64 code;			/* its program's text */
	u64 code_size;
	u64 top;			/* of what is mapped: libraries come first */
	u64 sp;
	u64 thread;			/* the thread pointer */
};

/* The top of a user stack, as it was at the last wait, and what was made of it. */
struct offcpu_top {
	struct offcpu_layout layout;
	u64 chain;			/* hash of the chain of frame pointers, 0 not known */
	u64 caller;			/* and of that, the layout and the words, 0 not known */
	u64 walked;			/* bytes of it in which frames were found */
	u64 stale;			/* a bit for each block whose hash is not known any more */
	u64 hashes[TOP_BLOCKS];		/* of the words in a block that may be return addresses, 0 without any */
	u64 words[TOP_WORDS];
};
#endif

#if OFFCPU_WAKER_STACKS
struct offcpu_waker_stack {
	u32 first;			/* kernel frames from here on: those before are of tracing itself */
	u32 nr_kernel;
	u64 kernel[OFFCPU_FRAMES];
	struct offcpu_stack user;
};
#endif

/*
 * What is kept of a task. Unless everybody is recorded, having one is what makes a task recorded.
 */
struct offcpu_task {
	u64 since_ns;			/* when it began to do what it does */
	u64 wakeup_ns;			/* its wake-up while it waits, 0 none yet */
	u32 waker_pid;			/* or OFFCPU_NO_ID */
	u32 waker_tid;
	u32 mode;			/* enum offcpu_mode: what it does */
	u32 prev_state;			/* of the wait */
	u32 flags;			/* of the wait: OFFCPU_PREEMPTED_WAIT, … */
	u32 waker_flags;		/* OFFCPU_WAKER_INTERRUPT */
	u64 passage;			/* see forget() */
#if OFFCPU_SUM_STACKS && !OFFCPU_SUM_CALLERS
	u64 kept_hash;			/* of `user`, if that has a check: threads often wait where they waited */
	u32 kept_generation;
#endif
#if OFFCPU_BUDGET
	struct offcpu_budget budget;
#endif
#if WALK_AT_SWITCH_OUT
	struct offcpu_stack user;	/* its user stack, taken at switch-out */
#endif
#if OFFCPU_SUM_CALLERS
	struct offcpu_top top;		/* likewise */
#endif
#if OFFCPU_WAKER_STACKS
	struct offcpu_waker_stack waker;
#endif
};

/*
 * A value through memory: the verifier forgets where it comes from, and does not follow all that is behind anew for
 * each way that leads there.
 */
__inline u64 forget(struct offcpu_task *storage, u64 value)
{
	*(volatile u64 *)&storage->passage = value;
	return *(volatile u64 *)&storage->passage;
}

#if OFFCPU_SUM_CALLERS
#define TOP_OF(storage) (&(storage)->top)
#else
#define TOP_OF(storage) 0
#endif

/* A wait that is over. */
struct offcpu_wait {
	struct task_struct *task;
	struct offcpu_task *storage;
	struct offcpu_stack *user;
	u64 switch_out_ns;
	u64 switch_in_ns;
	u64 wakeup_ns;
	u64 ns;
	u64 runq_ns;			/* OFFCPU_NOT_KNOWN */
	u32 prev_state;
	u32 flags;
	u32 pid;
	u32 tid;
	s32 syscall;
	u32 generation;
	u64 cgroup;
	u64 stack;			/* of its sum: hash of the user stack, 0 none */
	u64 caller;			/* and of who called, 0 not known */
	u32 lost;			/* and OFFCPU_LOST_* */
	bool first;			/* of its callers: to be sent with a copy of its stack, as a sum of one */
};

#define OFFCPU_CHAIN_WORDS (2 * (1 + OFFCPU_FRAMES))	/* a marker and the frames of either side */
#define OFFCPU_SAMPLE_WORDS (OFFCPU_CHAIN_WORDS + 1 + OFFCPU_EXTENSION_WORDS + OFFCPU_CHAIN_WORDS)

/* The payload of a sample. Its first words are upstream's: struct offcpu_data in tools/perf/util/bpf_skel. */
struct offcpu_payload {
	u32 pid;			/* tgid */
	u32 tid;
	u64 offcpu_ns;
	u64 nr;				/* words of the callchain */
	u64 words[OFFCPU_SAMPLE_WORDS];	/* callchain, cgroup, struct offcpu_extension, the waker's callchain */
};

/* Room that the 512 bytes of BPF stack do not have. */
struct offcpu_scratch {
#if !WALK_AT_SWITCH_OUT
	struct offcpu_stack user;
#endif
	volatile u32 first;		/* kernel frames from here on: those before are of the scheduler */
	u64 kernel[OFFCPU_FRAMES];
	u32 nr_early;			/* frames in `kernel` that were taken before the switch; 0 none */
	u32 early_task;			/* of this task */
	u64 early_since_ns;		/* in the wait that began then */
	struct offcpu_payload sample;
};

BPF_TASK_STORAGE(tasks, struct offcpu_task);
BPF_TABLE("array", u32, struct offcpu_control, control, 1);
BPF_TABLE("array", u32, struct offcpu_rate, rate, 1);
BPF_TABLE("percpu_array", u32, struct offcpu_count, counters, OFFCPU_COUNTERS);
BPF_TABLE("percpu_array", u32, struct offcpu_scratch, scratch, 1);
BPF_TABLE("percpu_array", u32, u64, switched, 1);	/* when each CPU last switched; 0 once that is used */
BPF_TABLE("hash", struct offcpu_sum_key, struct offcpu_sum, sums, OFFCPU_SUMS);
BPF_TABLE("hash", struct offcpu_stack_key, struct offcpu_stack, stacks, OFFCPU_STACKS);
BPF_TABLE("hash", struct offcpu_budget_key, struct offcpu_budget, budgets, OFFCPU_BUDGETS);
BPF_TABLE("hash", struct offcpu_target_key, u32, targets, OFFCPU_TARGETS_MAX);
BPF_TABLE("hash", struct offcpu_comm, u32, comms, OFFCPU_TARGETS_MAX);
BPF_TABLE("hash", u64, u32, groups, OFFCPU_TARGETS_MAX);
BPF_PERF_OUTPUT(events);

__inline void count(u32 which, u64 ns)
{
	struct offcpu_count *counter = counters.lookup(&which);

	if (counter) {
		counter->events += 1;
		counter->ns += ns;
	}
}

/* The switches, if the program is to record. */
__inline struct offcpu_control *enabled(void)
{
	u32 zero = 0;
	struct offcpu_control *switches = control.lookup(&zero);

	return switches && switches->enabled ? switches : 0;
}
