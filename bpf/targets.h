/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who is recorded.
 *
 * Some are named by id: processes, threads, a command. Whom they start is recorded, too; having storage is
 * what makes a task one of theirs. What else can be asked for are properties, looked at each time that a task
 * leaves its CPU, because they change: CPU, user, comm and control group. A task must have all the properties
 * that are asked for, each in one of the ways that are asked for.
 *
 *	OFFCPU_EVERYBODY			no ids: only properties decide
 *	OFFCPU_BY_PROCESS, OFFCPU_BY_THREAD	whether the map `targets` holds such ids
 *	OFFCPU_BY_USER, OFFCPU_BY_COMM, OFFCPU_BY_CPU	whether these properties are asked for
 *	OFFCPU_BY_GROUP				0, or 1 by cgroup v2, or 2 by the hierarchy of v1 at CSS_SET_CSS
 *	OFFCPU_PID_LEVEL, OFFCPU_PID_NAMESPACE	depth and inode of the recorder's pid namespace; depth 0: the first
 */
#define GROUP_LEVELS 24			/* how deep control groups may be nested */
#define OFFCPU_PROPERTIES (OFFCPU_BY_USER || OFFCPU_BY_COMM || OFFCPU_BY_GROUP)

/*
 * Ids, as perf's own records have them: those of the recorder's pid namespace; 0 for who is not in it
 */

#if OFFCPU_PID_LEVEL
struct offcpu_upid {			/* struct upid, include/linux/pid.h */
	u32 nr;
	void *ns;
};

__inline u32 tid_of(struct task_struct *task)
{
	char *pid = FIELD(char *, task, TASK_THREAD_PID);
	struct offcpu_upid upid = {};
	u32 level = 0, inode = 0;

	bpf_probe_read_kernel(&level, sizeof(level), pid + PID_LEVEL);
	if (level < OFFCPU_PID_LEVEL)
		return 0;
	bpf_probe_read_kernel(&upid, sizeof(upid), pid + PID_NUMBERS + OFFCPU_PID_LEVEL * sizeof(upid));
	bpf_probe_read_kernel(&inode, sizeof(inode), (char *)upid.ns + PID_NAMESPACE_INUM);
	return inode == OFFCPU_PID_NAMESPACE ? upid.nr : 0;
}

__inline u32 pid_of(struct task_struct *task)
{
	return tid_of(FIELD(struct task_struct *, task, TASK_GROUP_LEADER));
}
#else
__inline u32 tid_of(struct task_struct *task)
{
	return FIELD(u32, task, TASK_PID);
}

__inline u32 pid_of(struct task_struct *task)
{
	return FIELD(u32, task, TASK_TGID);
}
#endif

__inline u32 *find_target(u32 kind, u32 id)
{
	struct offcpu_target_key key = {.kind = kind, .id = id};

	return targets.lookup(&key);
}

#if !OFFCPU_EVERYBODY
__inline bool is_target(struct task_struct *task)
{
	u32 *target;

#if OFFCPU_BY_THREAD
	if (find_target(OFFCPU_THREAD, tid_of(task)))
		return true;
#endif
#if OFFCPU_BY_PROCESS
	target = find_target(OFFCPU_PROCESS, pid_of(task));
	if (target && *target == OFFCPU_TARGET_ACTIVE)
		return true;
#endif
	return false;
}
#endif

/*
 * Properties
 */

#if OFFCPU_BY_GROUP
/* Whether the task is in a control group that is asked for, or in one below it. */
__inline bool in_groups(struct task_struct *task)
{
	char *set = FIELD(char *, task, TASK_CGROUPS), *css = 0, *cgroup = 0, *node = 0;
	u32 i;

#if OFFCPU_BY_GROUP == 1
	bpf_probe_read_kernel(&cgroup, sizeof(cgroup), set + CSS_SET_DFL_CGRP);
	css = cgroup + CGROUP_SELF;
#else
	bpf_probe_read_kernel(&css, sizeof(css), set + CSS_SET_CSS);
#endif
#pragma clang loop unroll(disable)
	for (i = 0; i < GROUP_LEVELS; i++) {
		u64 id = 0;

		BOUNDED(i);
		bpf_probe_read_kernel(&cgroup, sizeof(cgroup), css + CSS_CGROUP);
		bpf_probe_read_kernel(&node, sizeof(node), cgroup + CGROUP_KN);
		if (bpf_probe_read_kernel(&id, sizeof(id), node + KERNFS_NODE_ID))
			return false;
		if (groups.lookup(&id))
			return true;
		if (bpf_probe_read_kernel(&css, sizeof(css), css + CSS_PARENT) || !css)
			return false;
	}
	return false;
}
#endif

#if OFFCPU_BY_COMM
__inline bool has_comm(struct task_struct *task)
{
	struct offcpu_comm comm = {};

	bpf_probe_read_kernel_str(&comm, sizeof(comm), (char *)task + TASK_COMM);
	return comms.lookup(&comm);
}
#endif

/* Whether a task has what is asked for, as far as that lies in the task. */
__inline bool has_properties(struct task_struct *task)
{
#if OFFCPU_BY_USER
	void *cred = FIELD(void *, task, TASK_REAL_CRED);

	if (!find_target(OFFCPU_USER, FIELD(u32, cred, CRED_EUID)))
		return false;
#endif
#if OFFCPU_BY_COMM
	if (!has_comm(task))
		return false;
#endif
#if OFFCPU_BY_GROUP
	if (!in_groups(task))
		return false;
#endif
#if OFFCPU_PID_LEVEL
	if (!tid_of(task))
		return false;
#endif
	return true;
}

/* Whether what happens on this CPU is recorded. */
__inline bool on_chosen_cpu(void)
{
#if OFFCPU_BY_CPU
	return find_target(OFFCPU_CPU, bpf_get_smp_processor_id());
#else
	return true;
#endif
}

/*
 * Who is recorded
 */

__inline struct offcpu_task *create_storage(struct task_struct *task)
{
	struct offcpu_task *storage = tasks.task_storage_get(task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!storage)
		count(OFFCPU_STORAGE_FAILED, 0);
	return storage;
}

__inline struct offcpu_task *find_storage(struct task_struct *task)
{
	return tasks.task_storage_get(task, 0, 0);
}

/* The storage of a task that is recorded, made at its first wait; NULL for others. */
__inline struct offcpu_task *recorded(struct task_struct *task)
{
	if (!has_properties(task))
		return 0;
#if OFFCPU_EVERYBODY
	return create_storage(task);
#else
	struct offcpu_task *storage = find_storage(task);

	if (storage || !is_target(task))
		return storage;
	return create_storage(task);
#endif
}
