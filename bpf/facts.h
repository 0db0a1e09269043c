/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Facts about a task: its mode, cgroup and system call.
 */
#ifndef OFFCPU_FACTS_H
#define OFFCPU_FACTS_H

#include "maps.h"

/* include/linux/sched.h */
#define PF_KTHREAD 0x00200000
#define TASK_INTERRUPTIBLE 0x1
#define TASK_UNINTERRUPTIBLE 0x2
#define TASK_STOPPED 0x4
#define TASK_TRACED 0x8
#define TASK_DEAD 0x80
#define TASK_WAKING 0x200
#define TASK_NOLOAD 0x400
#define TASK_NEW 0x800
#define TASK_RTLOCK_WAIT 0x1000		/* since 5.15 */
#define TASK_FROZEN 0x8000		/* since 6.1 */
#define TASK_IDLE (TASK_UNINTERRUPTIBLE | TASK_NOLOAD)

static __always_inline bool is_kernel_thread(struct task_struct *task)
{
	return FIELD(u32, task, TASK_FLAGS) & PF_KTHREAD;
}

/* Whether a task may be recorded. Idle threads, whose id is 0, never are. */
static __always_inline bool is_candidate(const struct offcpu_control *ctl, struct task_struct *task)
{
	if (!is_kernel_thread(task))
		return true;
	return ctl->kernel_threads && FIELD(u32, task, TASK_PID);
}

/* The mode of a task that leaves its CPU in a state. */
static __always_inline u32 mode_of(u32 state, bool preempted)
{
	if (preempted || !state)
		return OFFCPU_PREEMPTED;
	if ((state & TASK_IDLE) == TASK_IDLE)
		return OFFCPU_IDLE;
	if (state & TASK_INTERRUPTIBLE)
		return OFFCPU_INTERRUPTIBLE;
	if (state & (TASK_UNINTERRUPTIBLE | TASK_RTLOCK_WAIT | TASK_FROZEN))
		return OFFCPU_UNINTERRUPTIBLE;
	if (state & TASK_STOPPED)
		return OFFCPU_STOPPED;
	if (state & TASK_TRACED)
		return OFFCPU_TRACED;
	return state & TASK_DEAD ? OFFCPU_DEAD : OFFCPU_OTHER;
}

/* The id of the task's cgroup in the v2 hierarchy, 0 if it is not asked for or there is none. */
static __always_inline u64 cgroup_of(const struct offcpu_control *ctl, struct task_struct *task)
{
#ifdef TASK_CGROUPS
	void *set, *cgroup, *node;

	if (!ctl->cgroups)
		return 0;
	set = FIELD(void *, task, TASK_CGROUPS);
	cgroup = FIELD(void *, set, CSS_SET_DFL_CGRP);
	node = FIELD(void *, cgroup, CGROUP_KN);
	return FIELD(u64, node, KERNFS_NODE_ID);
#else
	return 0;
#endif
}

/*
 * The system call in which a task waits, from the registers with which it entered the kernel. The
 * kernel sets the number to -1 for page faults and interrupts. A task that only waits for a CPU
 * does not wait in a system call.
 */
static __always_inline s32 syscall_of(struct task_struct *task, u32 flags)
{
#if OFFCPU_SYSCALLS
	void *regs;

	if (flags & OFFCPU_PREEMPTED_WAIT || is_kernel_thread(task))
		return OFFCPU_SYSCALL_NONE;
	regs = (void *)bpf_task_pt_regs(task);
	return FIELD(REGS_SYSCALL_TYPE, regs, REGS_SYSCALL);
#else
	return OFFCPU_SYSCALL_UNKNOWN;
#endif
}

/* Whether this program runs in an interrupt, so that `current` is only the task that it hit. */
static __always_inline bool in_interrupt(struct task_struct *current)
{
#if OFFCPU_PREEMPT_COUNT == OFFCPU_PREEMPT_COUNT_OF_TASK
	return FIELD(u32, current, PREEMPT_COUNT) & INTERRUPT_MASK;
#elif OFFCPU_PREEMPT_COUNT == OFFCPU_PREEMPT_COUNT_OF_CPU
	void *cfs = FIELD(void *, current, TASK_CFS_RQ);
	char *rq = FIELD(void *, cfs, CFS_RQ_RQ);
	u32 count = 0;

	/* Both are per-CPU variables: their distance is the same on every CPU. */
	bpf_probe_read_kernel(&count, sizeof(count), rq + PREEMPT_COUNT);
	return count & INTERRUPT_MASK;
#else
	return false;
#endif
}

#endif /* OFFCPU_FACTS_H */
