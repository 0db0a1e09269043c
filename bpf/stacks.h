/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Walking stacks, and keeping each different one once.
 */
#define SCHEDULER_FRAMES 32		/* within so many frames the scheduler's end; some ten is usual */
#define TRACING_FRAMES 16		/* and within so many those of this program and its callers */
#define SHALLOW_FRAMES 32		/* few stacks are deeper; the kernel clears the room that is not used */

/* The kernel's walk, for tasks that ours is not for; gives the number of frames, negative if it failed. */
__inline long walk_as_kernel(void *ctx, struct offcpu_stack *stack)
{
	const u32 few = SHALLOW_FRAMES * sizeof(u64);
	long bytes = few;

	stack->check = 0;
	/* What was deep last time will be deep again; what was not is asked for less at first. */
	if (stack->nr < SHALLOW_FRAMES)
		bytes = bpf_get_stack(ctx, stack->ips, few, BPF_F_USER_STACK);
	if (bytes == few)
		bytes = bpf_get_stack(ctx, stack->ips, sizeof(stack->ips), BPF_F_USER_STACK);
	return bytes < 0 ? bytes : bytes / sizeof(u64);
}

/*
 * Where it happens often (which is known when this is compiled) frames are read by windows. That loop takes the
 * verifier long, for each way that leads to it anew, so a program has one place for it: the begin of a wait,
 * or the wake-up. Elsewhere, for long waits only, the kernel walks, and finds the same frames.
 */
__inline void walk_user_stack(void *ctx, struct task_struct *task, struct offcpu_stack *stack,
				struct offcpu_top *top, bool often)
{
	long nr = 0;

#if OFFCPU_FRAME_POINTERS
	if (often)
		nr = walk_frames(task, stack, top);
#endif
	if (!nr)
		nr = walk_as_kernel(ctx, stack);
	stack->nr = nr > 0 ? nr : 0;
	stack->lost = nr >= OFFCPU_FRAME_LIMIT ? OFFCPU_LOST_USER_CUT : 0;
	if (nr < 0) {
		stack->lost = OFFCPU_LOST_USER_STACK;
		count(OFFCPU_USER_STACK_FAILED, 0);
	}
}

/* The user stack of a task, which is `current`; kernel threads have none. */
__inline void take_user_stack(void *ctx, struct task_struct *task, struct offcpu_stack *stack,
				struct offcpu_top *top, bool often)
{
	if (OFFCPU_KERNEL_THREADS && FIELD(u32, task, TASK_FLAGS) & PF_KTHREAD) {
		stack->nr = 0;
		stack->lost = 0;
		return;
	}
	walk_user_stack(ctx, task, stack, top, often);
}

/* The same at the end of a wait whose begin was not seen: only there is the sleeper's memory at hand. */
__inline void late_user_stack(void *ctx, struct task_struct *task, struct offcpu_stack *stack)
{
#if OFFCPU_AT_EXIT
	take_user_stack(ctx, task, stack, 0, false);
#else
	stack->nr = 0;
	stack->lost = FIELD(u32, task, TASK_FLAGS) & PF_KTHREAD ? 0 : OFFCPU_LOST_USER_STACK;
#endif
}

/*
 * A 64-bit hash to find a stack by and a second, unlike it, to notice when two stacks share the first.
 */
__inline u64 hash_stack(struct offcpu_stack *stack)
{
	u64 hash = 0x9e3779b97f4a7c15ULL ^ stack->nr, check = 0;
	u32 i;

#pragma clang loop unroll(disable)
	for (i = 0; i < OFFCPU_FRAMES; i++) {
		BOUNDED(i);
		if (i >= stack->nr)
			break;
		hash = (hash ^ stack->ips[i]) * 0xff51afd7ed558ccdULL;
		hash ^= hash >> 32;
		check = (check << 7 | check >> 57) + stack->ips[i];
	}
	stack->check = check ^ check >> 32;
	return hash ? hash : 1;
}

#if OFFCPU_SUM_STACKS
/* Keep a stack; false, and the cause counted, if that cannot be. */
__inline bool keep_stack(struct offcpu_stack_key *key, struct offcpu_stack *stack)
{
	struct offcpu_stack *known = stacks.lookup(key);

	if (!known) {
		if (!stacks.update(key, stack))
			return true;
		count(OFFCPU_STACK_MAP_FULL, 0);
		return false;
	}
	if (known->check == stack->check && known->nr == stack->nr)
		return true;
	count(OFFCPU_STACK_COLLISION, 0);
	return false;
}

/* The hash under which a wait's stack is found; 0 without, or if it could not be kept. */
__inline u64 intern_stack(struct offcpu_wait *wait)
{
	struct offcpu_stack_key key = {.generation = wait->generation};
#if !OFFCPU_SUM_CALLERS
	struct offcpu_task *storage = wait->storage;
#endif

	if (!wait->user->nr)
		return 0;
#if !OFFCPU_SUM_CALLERS
	if (wait->user->check && storage->kept_hash && storage->kept_generation == wait->generation)
		return storage->kept_hash;
	storage->kept_hash = 0;
#endif
	key.hash = hash_stack(wait->user);
	if (!keep_stack(&key, wait->user))
		return 0;
#if !OFFCPU_SUM_CALLERS
	storage->kept_hash = key.hash;
	storage->kept_generation = wait->generation;
#endif
	return key.hash;
}
#endif

#if OFFCPU_KERNEL_STACKS
#if OFFCPU_AT_EXIT
/*
 * The walk of the running task begins with this program and what called it, then come __schedule() and
 * other functions of the scheduler's text section. The first frame behind them says what the task waits
 * for: the same that the kernel shows as wchan, and that bpf_get_task_stack() gives for a sleeping task.
 */
__inline u32 skip_scheduler(const u64 *ips, u32 nr)
{
	bool seen = false;
	u32 i;

#pragma clang loop unroll(disable)
	for (i = 0; i < SCHEDULER_FRAMES; i++) {
		BOUNDED(i);
		if (i >= nr)
			return seen ? nr : 0;
		if (ips[i] - OFFCPU_SCHED_TEXT < OFFCPU_SCHED_TEXT_SIZE)
			seen = true;
		else if (seen)
			return i;
	}
	return 0;
}
#endif

#if OFFCPU_KERNEL_EARLY
/*
 * The kernel stack of the task that is coming, before the switch: it stands as it slept, without this program,
 * tracing and the scheduler on top. That is some 600 ns less than at the end of the wait, but each switch pays
 * for the question whether this wait is long.
 */
__inline void walk_early(struct task_struct *next, u64 now)
{
	struct offcpu_control *switches = enabled();
	struct offcpu_scratch *to;
	struct offcpu_task *storage;
	u32 zero = 0;
	long bytes;

	to = scratch.lookup(&zero);
	if (!to)
		return;
	to->nr_early = 0;
	if (!switches || !is_candidate(next))
		return;
	storage = find_storage(next);
	if (!storage || !WANTED(storage->mode) || now - storage->since_ns < switches->threshold_ns)
		return;
	bytes = bpf_get_task_stack(next, to->kernel, sizeof(to->kernel), 0);
	to->nr_early = bytes > 0 ? bytes / sizeof(u64) : 0;
	to->early_task = FIELD(u32, next, TASK_PID);
	to->early_since_ns = storage->since_ns;
}
#endif

/*
 * Walk the sleeper's kernel stack into scratch; [to->first, result) are the frames to show. Where the first one
 * is goes through memory: else the verifier would follow all that comes behind for each of its values.
 */
__inline u32 walk_kernel_stack(void *ctx, struct offcpu_wait *wait, struct offcpu_scratch *to)
{
	long bytes;

	to->first = 0;
#if OFFCPU_KERNEL_EARLY
	/* A switch may pass untold: then this is the stack of another wait. */
	if (to->nr_early && to->early_task == FIELD(u32, wait->task, TASK_PID) &&
	    to->early_since_ns == wait->switch_out_ns)
		return to->nr_early;
#endif
#if OFFCPU_AT_EXIT
	bytes = bpf_get_stack(ctx, to->kernel, sizeof(to->kernel), 0);
#else
	bytes = bpf_get_task_stack(wait->task, to->kernel, sizeof(to->kernel), 0);
#endif
	if (bytes < 0) {
		count(OFFCPU_KERNEL_STACK_FAILED, 0);
		return 0;
	}
#if OFFCPU_AT_EXIT
	to->first = skip_scheduler(to->kernel, bytes / sizeof(u64));
#endif
	return bytes / sizeof(u64);
}
#endif

#if OFFCPU_WAKER_STACKS
/* How many frames come before try_to_wake_up(): those of this program and its callers; 0 if it is not seen. */
__inline u32 skip_tracing(const u64 *ips, u32 nr)
{
	u32 i;

#pragma clang loop unroll(disable)
	for (i = 0; i < TRACING_FRAMES; i++) {
		BOUNDED(i);
		if (i >= nr)
			break;
		if (ips[i] - OFFCPU_WAKE_UP < OFFCPU_WAKE_UP_SIZE)
			return i;
	}
	return 0;
}

/* The stack of `current`, which wakes: its kernel part, and its user part if it is no interrupt's. */
__inline void walk_waker(void *ctx, struct task_struct *current, u32 flags, struct offcpu_waker_stack *to)
{
	long bytes = bpf_get_stack(ctx, to->kernel, sizeof(to->kernel), 0);

	to->nr_kernel = bytes > 0 ? bytes / sizeof(u64) : 0;
	to->first = skip_tracing(to->kernel, to->nr_kernel);
	if (flags & OFFCPU_WAKER_INTERRUPT || FIELD(u32, current, TASK_FLAGS) & PF_KTHREAD)
		to->user.nr = 0;
	else
		walk_user_stack(ctx, current, &to->user, 0, true);
}
#endif
