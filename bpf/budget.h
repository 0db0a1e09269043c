/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where the time of each thread goes. Every moment of its life inside the recording is accounted
 * to exactly one mode: each change ends one interval and begins the next with the same timestamp.
 */
#pragma once

#include "targets.h"

/* Account the time up to `until` to a mode. */
static __always_inline void spend(struct offcpu_task *storage, u32 mode, u64 until)
{
	/* ktime_get_mono_fast_ns() may step back a little while the kernel updates the clock. */
	if (until <= storage->since_ns)
		return;
	if (OFFCPU_BUDGET) {
		barrier_var(mode);	/* clang may know its value, the verifier does not */
		storage->budget->ns[mode & (OFFCPU_BUCKETS - 1)] += until - storage->since_ns;
	}
	storage->since_ns = until;
}

/* Note the ids of a thread, which may have none any more at its last switch-out. */
static __always_inline void note_ids(struct offcpu_budget *budget, struct task_struct *task)
{
	void *leader = POINTER(task, TASK_GROUP_LEADER);
	u32 own = upid_at(POINTER(task, TASK_THREAD_PID), 0, true).nr;

	if (budget->tid && !own)
		return;
	budget->pid = pid_of(task);
	budget->tid = tid_of(task);
	budget->own_pid = upid_at(FIELD(char *, leader, TASK_THREAD_PID), 0, true).nr;
	budget->own_tid = own;
}

/* Begin to account for a task. Its mode since its birth or the begin of recording is unknown. */
static __always_inline void begin_budget(const struct offcpu_control *ctl,
					 struct offcpu_task *storage, struct task_struct *task)
{
	u64 birth = FIELD(u64, task, TASK_START_TIME);

	if (storage->since_ns >= ctl->begin_ns)
		return;
	/* What was noted before recording began, or went on after a pause, is over. */
	if (storage->wakeup_ns < ctl->begin_ns)
		storage->wakeup_ns = 0;
	storage->holder_tid = OFFCPU_NO_ID;
	storage->mode = OFFCPU_UNKNOWN;
	storage->since_ns = max(birth, ctl->begin_ns);
	if (!OFFCPU_BUDGET)
		return;
	__builtin_memset(storage->budget, 0, sizeof(storage->budget));
	storage->budget->begin_ns = storage->since_ns;
	note_ids(storage->budget, task);
}

/* The number of times that a task has left a CPU. */
static __always_inline u64 switches_of(struct task_struct *task)
{
	return FIELD(u64, task, TASK_NVCSW) + FIELD(u64, task, TASK_NIVCSW);
}

/*
 * Leave out run-queue delay of a wait beyond `queued`, which the wake-up tells. Since 6.12 a thread
 * that blocks may stay in its queue; if it is moved then, the kernel counts all that follows.
 */
static __always_inline void leave_out_delay(struct offcpu_task *storage, struct task_struct *task,
					    u64 queued)
{
	s64 more = FIELD(u64, task, TASK_RUN_DELAY) - storage->budget->queued_ns - queued;

	if (OFFCPU_BUDGET && TASK_RUN_DELAY && more > (s64)NS_PER_MS)
		storage->budget->queued_before_ns += more;
}

/*
 * Note the kernel's own figures of a thread that leaves its CPU, when they are exact. At the first
 * switch of a budget those of its begin follow: 0 at birth, else without what was accounted since.
 */
static __always_inline void note_figures(struct offcpu_budget *budget, struct task_struct *task)
{
	u64 ran = FIELD(u64, task, TASK_SUM_EXEC_RUNTIME);
	u64 queued = FIELD(u64, task, TASK_RUN_DELAY);

	if (!TASK_RUN_DELAY)
		return;
	budget->ran_ns = ran;
	budget->queued_ns = queued;
	if (budget->switches || FIELD(u64, task, TASK_START_TIME) == budget->begin_ns)
		return;
	budget->ran_before_ns = ran - budget->ns[OFFCPU_RUNNING];
	budget->queued_before_ns = queued - budget->ns[OFFCPU_RUNNABLE] -
				   budget->ns[OFFCPU_THROTTLED] - budget->ns[OFFCPU_PREEMPTED];
}

/* Hand the budget of a thread to user space at its last switch-out. */
static __always_inline void end_budget(struct offcpu_task *storage, struct task_struct *task,
				       u32 generation)
{
	struct offcpu_budget *budget = storage->budget;
	struct offcpu_budget_key key = {0, generation, budget->begin_ns};

	note_ids(budget, task);
	key.tid = budget->tid;
	budget->end_ns = storage->since_ns;
	if (budgets.update(&key, budget))
		count(OFFCPU_BUDGETS_LOST, budget->end_ns - budget->begin_ns);
}
