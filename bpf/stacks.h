/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Walk stacks, and keep each different user stack once. */
#pragma once

#include "targets.h"
#include "user_walk.h"

#define SCHEDULER_FRAMES 32		/* the scheduler's part ends within these; usually 10 */
#define TRACING_FRAMES 16		/* the part of tracing ends within these */
#define SHALLOW_FRAMES 32		/* most stacks; the kernel clears the rest of the buffer */

/* Have the kernel walk. Return the number of frames, or a negative error. */
static __always_inline long walk_as_kernel(void *ctx, struct offcpu_stack *stack)
{
	const u32 few = SHALLOW_FRAMES * sizeof(u64);
	long bytes = few;

	stack->check = 0;
	/* A stack that was deep last time is probably deep again. */
	if (stack->nr < SHALLOW_FRAMES)
		bytes = bpf_get_stack(ctx, stack->ips, few, BPF_F_USER_STACK);
	if (bytes == few)
		bytes = bpf_get_stack(ctx, stack->ips, sizeof(stack->ips), BPF_F_USER_STACK);
	return bytes < 0 ? bytes : bytes / sizeof(u64);
}

/*
 * Walk the user stack of a task, which is `current`; kernel threads have none.
 * With `often`, a constant, frames are read by windows. Verifiers that follow each round (loops.h)
 * take long for that, so a program has one place for it: the begin of a wait, or the wake-up.
 * Elsewhere, for long waits only, the kernel walks: at their end, with OFFCPU_AT_EXIT only.
 */
static __always_inline void take_user_stack(void *ctx, const struct offcpu_control *ctl,
					    struct task_struct *task, struct offcpu_stack *stack,
					    struct offcpu_top *top, bool often)
{
	long nr = 0;

	if (is_kernel_thread(task) || (!OFFCPU_AT_EXIT && !often)) {
		stack->nr = 0;
		stack->lost = is_kernel_thread(task) ? 0 : OFFCPU_LOST_USER_STACK;
		return;
	}
	if (OFFCPU_FRAME_POINTERS && often)
		nr = walk_frames(ctl, task, stack, top);
	if (!nr)
		nr = walk_as_kernel(ctx, stack);
	stack->nr = nr > 0 ? nr : 0;
	stack->lost = nr < 0 ? OFFCPU_LOST_USER_STACK :
		      nr >= OFFCPU_FRAME_LIMIT ? OFFCPU_LOST_USER_CUT : 0;
	if (nr < 0)
		count(OFFCPU_USER_STACK_FAILED, 0);
}

/*
 * Begin the hash of a user stack. Processes of one user share hashes, because many have the same
 * stacks (forks). What a user writes on a stack cannot lead to the hash of another user's stack:
 * only the recorder knows how far apart both begin.
 */
static __always_inline u64 seed_of(const struct offcpu_control *ctl, struct task_struct *task)
{
	void *cred = POINTER(task, TASK_REAL_CRED);
	u64 seed = (FIELD(u32, cred, CRED_EUID) + ctl->hash_key) * (ctl->hash_key | 1);

	return seed ^ seed >> 32;
}

/* Hash a stack twice: a 64-bit hash to find it by, and a check for stacks that share the first. */
static __always_inline u64 hash_stack(const struct offcpu_control *ctl,
				      struct offcpu_stack *stack, u64 seed)
{
	u64 hash = seed ^ stack->nr, check = 0, i;

	for_each_round(ctl, i, 0, OFFCPU_FRAMES) {
		if (i >= stack->nr)
			break;
		hash = mix(hash, stack->ips[i]);
		check = (check << 7 | check >> 57) + stack->ips[i];
	}
	stack->check = check ^ check >> 32;
	return hash ? hash : 1;
}

/* Keep a stack in the map. If that fails, count why and return false. */
static __always_inline bool keep_stack(struct offcpu_stack_key *key, struct offcpu_stack *stack)
{
	struct offcpu_stack *known = stacks.lookup(key);
	bool is_kept = known ? known->check == stack->check && known->nr == stack->nr :
			       !stacks.update(key, stack);

	if (!is_kept)
		count(known ? OFFCPU_STACK_COLLISION : OFFCPU_STACK_MAP_FULL, 0);
	return is_kept;
}

/* Keep the user stack of a wait that begins a sum, or is told from others by its stack. */
static __always_inline void keep_user_stack(const struct offcpu_run *run)
{
	struct offcpu_task *storage = run->storage;
	struct offcpu_wait *wait = run->wait;
	struct offcpu_stack_key key = {.generation = wait->generation};

	wait->lost = run->user->lost;
	if (!run->user->nr)
		return;
	if (KEEPS_HASH && run->user->check && storage->kept_hash &&
	    storage->kept_generation == key.generation) {
		wait->stack = storage->kept_hash;
		return;
	}
	key.hash = hash_stack(run->ctl, run->user, seed_of(run->ctl, run->task));
	if (keep_stack(&key, run->user))
		wait->stack = key.hash;
	else
		wait->lost = OFFCPU_LOST_USER_STACK;
	if (KEEPS_HASH) {
		storage->kept_hash = wait->stack;
		storage->kept_generation = key.generation;
	}
}

/*
 * The kernel stack of the running task begins with this program and its callers. __schedule() and
 * other functions of the scheduler's text section follow. The first frame after them says what the
 * task waits for, like wchan and like bpf_get_task_stack() of a sleeping task; but functions of
 * locks, which are in that section, too, stay. Return its number.
 */
static __always_inline u32 skip_scheduler(const struct offcpu_control *ctl, const u64 *ips, u32 nr)
{
	bool seen = false;
	u64 i;

	for_each_round(ctl, i, 0, SCHEDULER_FRAMES) {
		if (i >= nr)
			return seen ? nr : 0;
		if (is_within(ips[i], OFFCPU_SCHED_TEXT) && !is_within(ips[i], OFFCPU_LOCK_TEXT))
			seen = true;
		else if (seen)
			return i;
	}
	return 0;
}

/*
 * Take the kernel stack of the incoming task before the switch: without this program, tracing and
 * the scheduler on top, which takes some 600 ns less than at the end of the wait.
 */
static __always_inline void walk_early(struct task_struct *next, u64 since_ns)
{
	struct offcpu_scratch *to = scratch.lookup(ONLY_KEY);
	long bytes;

	if (!to)
		return;
	bytes = bpf_get_task_stack(next, to->kernel, sizeof(to->kernel), 0);
	to->nr_early = bytes > 0 ? bytes / sizeof(u64) : 0;
	to->early_task = FIELD(u32, next, TASK_PID);
	to->early_since_ns = since_ns;
}

/* The same for a task whose wait is long: every switch has to find out. */
static __always_inline void walk_if_long(struct task_struct *next, u64 now)
{
	struct offcpu_control *ctl = enabled();
	struct offcpu_task *storage = ctl && is_candidate(ctl, next) ? find_storage(next) : NULL;

	if (storage && is_wanted(ctl, storage->mode) &&
	    now - storage->since_ns >= ctl->threshold_ns)
		walk_early(next, storage->since_ns);
}

/*
 * Walk the sleeper's kernel stack into scratch: frames [to->first, return value) are reported.
 * `first` is in memory: the verifier would follow the rest for each of its values.
 */
static __always_inline u32 walk_kernel_stack(const struct offcpu_run *run)
{
	struct offcpu_scratch *to = run->to;
	long bytes;

	to->first = 0;
	/* If a switch was not traced, the stack belongs to another wait. */
	if (OFFCPU_KERNEL_EARLY && to->nr_early &&
	    to->early_task == FIELD(u32, run->task, TASK_PID) &&
	    to->early_since_ns == run->wait->switch_out_ns)
		return to->nr_early;
	bytes = OFFCPU_AT_EXIT ? bpf_get_stack(run->ctx, to->kernel, sizeof(to->kernel), 0) :
				 bpf_get_task_stack(run->task, to->kernel, sizeof(to->kernel), 0);
	if (bytes < 0) {
		count(OFFCPU_KERNEL_STACK_FAILED, 0);
		return 0;
	}
	if (OFFCPU_AT_EXIT)
		to->first = skip_scheduler(run->ctl, to->kernel, bytes / sizeof(u64));
	return bytes / sizeof(u64);
}

/* The number of frames before try_to_wake_up(), of this program and its callers; 0 if not found. */
static __always_inline u32 skip_tracing(const struct offcpu_control *ctl, const u64 *ips, u32 nr)
{
	u64 i;

	for_each_round(ctl, i, 0, TRACING_FRAMES) {
		if (i >= nr)
			break;
		if (is_within(ips[i], OFFCPU_WAKE_UP))
			return i;
	}
	return 0;
}

/* Walk the stack of the waker, `current`. The user part is left out for interrupts. */
static __always_inline void walk_waker(void *ctx, const struct offcpu_control *ctl,
				       struct task_struct *current, struct offcpu_task *storage)
{
	struct offcpu_waker_stack *to = storage->waker;
	long bytes = bpf_get_stack(ctx, to->kernel, sizeof(to->kernel), 0);

	to->nr_kernel = bytes > 0 ? bytes / sizeof(u64) : 0;
	to->first = skip_tracing(ctl, to->kernel, to->nr_kernel);
	if (storage->waker_flags & OFFCPU_WAKER_INTERRUPT)
		to->user.nr = 0;
	else
		take_user_stack(ctx, ctl, current, &to->user, NULL, true);
}
