/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where the time of each thread goes. Every moment of its life inside the recording is put into exactly one
 * bucket: each change of what it does ends one interval and begins the next with the same time stamp.
 */

/* Up to `until` the task did something; time never runs backwards here. */
__inline void spend(struct offcpu_task *storage, u32 mode, u64 until)
{
	/* The fast clock may step back a little while the kernel updates it (ktime_get_mono_fast_ns). */
	if (until <= storage->since_ns)
		return;
#if OFFCPU_BUDGET
	BOUNDED(mode);			/* clang may know what it is, the verifier does not */
	storage->budget.ns[mode & (OFFCPU_BUCKETS - 1)] += until - storage->since_ns;
#endif
	storage->since_ns = until;
}

/* A task comes into view: since its birth or the begin of the recording, it is not known what it did. */
__inline void begin_budget(struct offcpu_task *storage, struct task_struct *task)
{
	struct offcpu_control *switches = enabled();
	u64 birth = FIELD(u64, task, TASK_START_TIME);

	if (!switches || storage->since_ns >= switches->begin_ns)
		return;
	storage->mode = OFFCPU_UNKNOWN;
	storage->since_ns = birth > switches->begin_ns ? birth : switches->begin_ns;
#if OFFCPU_BUDGET
	__builtin_memset(&storage->budget, 0, sizeof(storage->budget));
	storage->budget.begin_ns = storage->since_ns;
#endif
}

/* The same for a task that is recorded from this moment on, on its CPU. */
__inline void begin_running(struct offcpu_task *storage)
{
#if OFFCPU_BUDGET
	if (!storage || storage->mode)
		return;
	storage->since_ns = storage->budget.begin_ns = bpf_ktime_get_ns();
	storage->mode = OFFCPU_RUNNING;
#endif
}

/* Whether a task has yet to leave a CPU for the first time: if it now comes to one, it was just born. */
__inline bool is_newborn(struct task_struct *task)
{
	return !FIELD(u64, task, TASK_NVCSW) && !FIELD(u64, task, TASK_NIVCSW);
}

#if OFFCPU_BUDGET
/* The last switch-out of a thread: its budget is complete. */
__inline void end_budget(struct offcpu_task *storage, struct task_struct *task, u32 generation)
{
	struct offcpu_budget_key key = {
		.tid = tid_of(task),
		.generation = generation,
		.begin_ns = storage->budget.begin_ns,
	};

	storage->budget.pid = pid_of(task);
	storage->budget.tid = key.tid;
	storage->budget.end_ns = storage->since_ns;
	if (budgets.update(&key, &storage->budget))
		count(OFFCPU_BUDGETS_LOST, storage->budget.end_ns - storage->budget.begin_ns);
}
#endif
