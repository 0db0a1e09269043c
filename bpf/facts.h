/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What is known of a task beside its time and its stack.
 */
#define PF_KTHREAD 0x00200000		/* include/linux/sched.h, here and below */
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

/* Whether a task may be recorded at all; the idle threads, whose id is 0, never are. */
__inline bool is_candidate(struct task_struct *task)
{
	if (!(FIELD(u32, task, TASK_FLAGS) & PF_KTHREAD))
		return true;
	return OFFCPU_KERNEL_THREADS && FIELD(u32, task, TASK_PID);
}

/* What a task does that leaves its CPU in a state. */
__inline u32 mode_of(u32 state, bool preempted)
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

__inline u64 cgroup_of(struct task_struct *task)
{
#if OFFCPU_CGROUPS
	void *set = FIELD(void *, task, TASK_CGROUPS);
	void *cgroup = FIELD(void *, set, CSS_SET_DFL_CGRP);
	void *node = FIELD(void *, cgroup, CGROUP_KN);

	return FIELD(u64, node, KERNFS_NODE_ID);
#else
	return 0;
#endif
}

/*
 * The system call in which the task waits, from the registers it entered the kernel with. The kernel writes
 * -1 there for page faults and interrupts. Who only waits for a CPU does not wait in any.
 */
__inline s32 syscall_of(struct task_struct *task, u32 flags)
{
#if OFFCPU_SYSCALLS
	void *regs;

	if (flags & OFFCPU_PREEMPTED_WAIT)
		return OFFCPU_SYSCALL_NONE;
	if (OFFCPU_KERNEL_THREADS && FIELD(u32, task, TASK_FLAGS) & PF_KTHREAD)
		return OFFCPU_SYSCALL_NONE;
	regs = (void *)bpf_task_pt_regs(task);
	return FIELD(REGS_SYSCALL_TYPE, regs, REGS_SYSCALL);
#else
	return OFFCPU_SYSCALL_UNKNOWN;
#endif
}

/* Whether this program runs in an interrupt, and `current` is only what that interrupted. */
__inline bool in_interrupt(struct task_struct *current)
{
#if OFFCPU_PREEMPT_COUNT == OFFCPU_PREEMPT_COUNT_OF_TASK
	return FIELD(u32, current, PREEMPT_COUNT) & INTERRUPT_MASK;
#elif OFFCPU_PREEMPT_COUNT == OFFCPU_PREEMPT_COUNT_OF_CPU
	void *cfs = FIELD(void *, current, TASK_CFS_RQ);
	char *rq = FIELD(void *, cfs, CFS_RQ_RQ);
	u32 preempt_count = 0;

	/* A per-CPU variable, and so is the run queue: from CPU to CPU they lie equally far apart. */
	bpf_probe_read_kernel(&preempt_count, sizeof(preempt_count), rq + PREEMPT_COUNT);
	return preempt_count & INTERRUPT_MASK;
#else
	return false;
#endif
}
