/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which tasks are recorded.
 * Processes, threads and commands are targets by id; the tasks that they start get storage and are
 * recorded, too. CPU, user, comm and control group are properties, checked at each switch-out,
 * because they change. A task must have every kind of property that is asked for; several of one
 * kind are alternatives.
 *
 * Ids are those of the recorder's pid namespace, as in perf's own records; 0 for tasks outside.
 */
#pragma once

#include "facts.h"

#define GROUP_LEVELS 24			/* depth to which control groups may be nested */

struct offcpu_upid {			/* struct upid, include/linux/pid.h */
	u32 nr;
	u64 ns;				/* address of the namespace */
};

/* The id (struct pid) at a level of pid namespaces, or in its own, the last; 0 without one. */
static __always_inline struct offcpu_upid upid_at(char *pid, u64 level, bool own)
{
	struct offcpu_upid id = {};
	u32 last = kernel_bytes(NULL, (u64)pid + PID_LEVEL, sizeof(last));

	level = own ? last : level;
	if (level <= last)
		bpf_probe_read_kernel(&id, sizeof(id), pid + PID_NUMBERS + level * sizeof(id));
	return id;
}

/* An id (struct pid) in the recorder's pid namespace, which is not the first; 0 outside. */
static __always_inline u32 inner_id(char *pid)
{
	struct offcpu_upid upid = upid_at(pid, late_value(OFFCPU_PID_LEVEL), false);
	u32 inode = kernel_bytes(NULL, upid.ns + PID_NAMESPACE_INUM, sizeof(inode));

	return inode == late_value(OFFCPU_PID_NAMESPACE) ? upid.nr : 0;
}

static __always_inline u32 tid_of(struct task_struct *task)
{
	return late_value(OFFCPU_PID_LEVEL) ? inner_id(POINTER(task, TASK_THREAD_PID)) :
					      FIELD(u32, task, TASK_PID);
}

static __always_inline u32 pid_of(struct task_struct *task)
{
	return late_value(OFFCPU_PID_LEVEL) ?
	       inner_id(FIELD(char *, POINTER(task, TASK_GROUP_LEADER), TASK_THREAD_PID)) :
	       FIELD(u32, task, TASK_TGID);
}

static __always_inline u32 *find_target(u32 kind, u32 id)
{
	struct offcpu_target_key key = {kind, id};

	return targets.lookup(&key);
}

static __always_inline bool is_target(const struct offcpu_control *ctl, struct task_struct *task)
{
	u32 *target;

	if (ctl->everybody || (ctl->by_thread && find_target(OFFCPU_THREAD, tid_of(task))))
		return true;
	target = ctl->by_process ? find_target(OFFCPU_PROCESS, pid_of(task)) : NULL;
	return target && *target == OFFCPU_TARGET_ACTIVE;
}

/* Whether a task is in one of the control groups in `groups`, or below one. */
static __always_inline bool in_groups(const struct offcpu_control *ctl, struct task_struct *task)
{
	u64 set = (u64)POINTER(task, TASK_CGROUPS), css, node, id, i;

	css = OFFCPU_BY_GROUP == 1 ? kernel_word(NULL, set + CSS_SET_DFL_CGRP) + CGROUP_SELF :
				     kernel_word(NULL, set + CSS_SET_CSS);
	for_each_round(ctl, i, 0, GROUP_LEVELS) {
		node = kernel_word(NULL, kernel_word(NULL, css + CSS_CGROUP) + CGROUP_KN);
		id = kernel_word(NULL, node + KERNFS_NODE_ID);
		if (groups.lookup(&id))
			return true;
		css = kernel_word(NULL, css + CSS_PARENT);
		if (!css)
			break;
	}
	return false;
}

static __always_inline bool has_comm(struct task_struct *task)
{
	struct offcpu_comm comm = {};

	bpf_probe_read_kernel_str(&comm, sizeof(comm), (char *)task + TASK_COMM);
	return comms.lookup(&comm);
}

/* Whether a task may have a storage: without the look-up, for tasks that no BPF program knows. */
static __always_inline bool has_storage(struct task_struct *task)
{
	return !TASK_BPF_STORAGE || POINTER(task, TASK_BPF_STORAGE);
}

static __always_inline struct offcpu_task *find_storage(struct task_struct *task)
{
	return has_storage(task) ? tasks.task_storage_get(task, 0, 0) : NULL;
}

/* Whether a task has the properties that are asked for, apart from its CPU. */
static __always_inline bool has_properties(const struct offcpu_control *ctl,
					   struct task_struct *task)
{
	if (ctl->by_user &&
	    !find_target(OFFCPU_USER, FIELD(u32, POINTER(task, TASK_REAL_CRED), CRED_EUID)))
		return false;
	if ((ctl->by_comm && !has_comm(task)) || (OFFCPU_BY_GROUP && !in_groups(ctl, task)))
		return false;
	return !late_value(OFFCPU_PID_LEVEL) || tid_of(task) || find_storage(task);
}

static __always_inline struct offcpu_task *create_storage(struct task_struct *task)
{
	struct offcpu_task *made = tasks.task_storage_get(task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!made)
		count(OFFCPU_STORAGE_FAILED, 0);
	return made;
}

/* The storage of a task with the wanted properties, created if it is a target; else NULL. */
static __always_inline struct offcpu_task *recorded(const struct offcpu_control *ctl,
						    struct task_struct *task)
{
	struct offcpu_task *storage = find_storage(task);

	return storage || ctl->all_found || !is_target(ctl, task) ? storage : create_storage(task);
}
