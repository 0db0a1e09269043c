/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Facts about a task: its mode, cgroup and system call. */
#pragma once

#include "maps.h"

/* include/linux/sched.h */
enum { PF_EXITING = 0x4, PF_KTHREAD = 0x200000 };
enum { TASK_INTERRUPTIBLE = 1, TASK_UNINTERRUPTIBLE = 2, TASK_STOPPED = 4, TASK_TRACED = 8 };
enum { TASK_DEAD = 0x80, TASK_WAKING = 0x200, TASK_NOLOAD = 0x400, TASK_NEW = 0x800 };
enum { TASK_RTLOCK_WAIT = 0x1000, TASK_FROZEN = 0x8000 };	/* since 5.15 and 6.1 */
#define TASK_IDLE (TASK_UNINTERRUPTIBLE | TASK_NOLOAD)

enum { TS_COMPAT = 2, SOFTIRQ_OFFSET = 0x100 };	/* x86 asm/thread_info.h; linux/preempt.h */

static __always_inline bool is_kernel_thread(struct task_struct *task)
{
	return FIELD(u32, task, TASK_FLAGS) & PF_KTHREAD;
}

/* Whether a task is exiting: it no longer waits for what its system call names. */
static __always_inline bool is_exiting(struct task_struct *task)
{
	return FIELD(u32, task, TASK_FLAGS) & PF_EXITING;
}

/* Whether a task may be recorded. Idle threads, whose id is 0, never are. */
static __always_inline bool is_candidate(const struct offcpu_control *ctl, struct task_struct *task)
{
	return !is_kernel_thread(task) || (ctl->kernel_threads && FIELD(u32, task, TASK_PID));
}

/* The mode of a task that leaves its CPU in a state. */
static __always_inline u32 mode_of(u32 state, bool preempted)
{
	if (preempted || !state)
		return OFFCPU_PREEMPTED;
	if ((state & TASK_IDLE) == TASK_IDLE)
		return OFFCPU_IDLE;
	return state & TASK_INTERRUPTIBLE ? OFFCPU_INTERRUPTIBLE :
	       state & (TASK_UNINTERRUPTIBLE | TASK_RTLOCK_WAIT | TASK_FROZEN) ?
	       OFFCPU_UNINTERRUPTIBLE :
	       state & TASK_STOPPED ? OFFCPU_STOPPED : state & TASK_TRACED ? OFFCPU_TRACED :
	       state & TASK_DEAD ? OFFCPU_DEAD : OFFCPU_OTHER;
}

/*
 * Whether a runnable task leaves its CPU because its control group has used up its quota. Since
 * 6.18 each task of the group is throttled on its way to user space, before its whole run queue.
 */
static __always_inline bool is_throttled(struct task_struct *task)
{
	if (TASK_THROTTLED)
		return FIELD(u8, task, TASK_THROTTLED);
	return CFS_RQ_THROTTLE_COUNT &&
	       FIELD(s32, POINTER(task, TASK_CFS_RQ), CFS_RQ_THROTTLE_COUNT) > 0;
}

static __always_inline u32 flags_of(u32 mode, bool preempted)
{
	return mode == OFFCPU_THROTTLED ? OFFCPU_PREEMPTED_WAIT | OFFCPU_THROTTLED_WAIT :
	       mode != OFFCPU_PREEMPTED ? 0 :
	       preempted ? OFFCPU_PREEMPTED_WAIT : OFFCPU_PREEMPTED_WAIT | OFFCPU_YIELDED;
}

/* Return the id of the task's cgroup in the v2 hierarchy; 0 without one. */
static __always_inline u64 cgroup_of(struct task_struct *task)
{
	void *cgroup = FIELD(void *, POINTER(task, TASK_CGROUPS), CSS_SET_DFL_CGRP);

	return TASK_CGROUPS ? FIELD(u64, FIELD(void *, cgroup, CGROUP_KN), KERNFS_NODE_ID) : 0;
}

/* Whether a task entered the kernel in 64-bit mode. */
static __always_inline bool is_64_bit(void *regs)
{
	return (FIELD(u64, regs, REGS_MODE) & MODE_MASK) == MODE_64;
}

/* Whether a task is in a system call of a 32-bit program, which has other numbers and registers. */
static __always_inline bool is_compat(struct task_struct *task, void *regs)
{
	return (TASK_STATUS && FIELD(u32, task, TASK_STATUS) & TS_COMPAT) || !is_64_bit(regs);
}

/*
 * The system call in which a task waits, from the registers with which it entered the kernel. The
 * kernel sets the number to -1 for page faults and interrupts. A task that only waits for a CPU
 * does not wait in a system call.
 */
static __always_inline s32 syscall_of(struct task_struct *task, u32 flags)
{
	void *regs;
	s32 number;

	if (!OFFCPU_USER_REGISTERS)
		return OFFCPU_SYSCALL_UNKNOWN;
	if (flags & OFFCPU_PREEMPTED_WAIT || is_kernel_thread(task))
		return OFFCPU_SYSCALL_NONE;
	regs = (void *)bpf_task_pt_regs(task);
	number = FIELD(REGS_SYSCALL_TYPE, regs, REGS_SYSCALL);
	return number >= 0 && is_compat(task, regs) ? number | OFFCPU_SYSCALL_COMPAT : number;
}

/* The run queue that a task is on. Other variables of its CPU have a known distance from it. */
static __always_inline u64 run_queue_of(struct task_struct *task)
{
	return FIELD(u64, POINTER(task, TASK_CFS_RQ), CFS_RQ_RQ);
}

/*
 * Whether a softirq only handles packets that `current` sends to this machine: its system call has
 * put them into the CPU's backlog, and serves that when it enables softirqs again. At the end of an
 * interrupt, and in ksoftirqd, they are served for anybody. x86's stack of interrupts ends with the
 * calls do_softirq > handle_softirqs > net_rx_action > __napi_poll > process_backlog (reading it
 * takes 0.1 us, walking 4). On arm64 the end does not tell who switched to it.
 */
static __always_inline bool in_own_softirq(void *ctx, struct task_struct *current)
{
	struct offcpu_irq_stack *stack = irq_stack.lookup(ONLY_KEY);
	u64 served = 0, own = 0;
	u32 i;

	if (!stack || !FIELD(u32, current, TASK_PID))
		return false;
#if OFFCPU_IRQ_STACK
	u64 queue = run_queue_of(current), end = kernel_word(NULL, queue + IRQ_STACK_PTR);

	if (!kernel_bytes(NULL, queue + IRQ_STACK_IN_USE, sizeof(u8)) ||
	    !is_within(kernel_word(NULL, end - sizeof(u64)), OFFCPU_DO_SOFTIRQ) ||
	    bpf_probe_read_kernel(stack, sizeof(*stack), (void *)(end - sizeof(*stack))))
		return false;
#else
	if (!OFFCPU_ARM64 || bpf_get_stack(ctx, stack, sizeof(*stack), 0) < 0)
		return false;
#endif
#pragma clang loop unroll(disable)
	for (i = 0; i < IRQ_STACK_WORDS; i++) {
		served |= is_within(stack->words[i], OFFCPU_BACKLOG);
		own |= is_within(stack->words[i], OFFCPU_DO_SOFTIRQ);
	}
	return served && own;
}

/* Whether this program runs in an interrupt, so that `current` is only the task that it hit. */
static __always_inline bool in_interrupt(void *ctx, struct task_struct *current)
{
	u32 count = 0;

#if OFFCPU_PREEMPT_COUNT == OFFCPU_PREEMPT_COUNT_OF_TASK
	count = FIELD(u32, current, PREEMPT_COUNT);
#elif OFFCPU_PREEMPT_COUNT == OFFCPU_PREEMPT_COUNT_OF_CPU && defined(OFFCPU_READ_ONLY_CAST)
	/* Without a call, which takes 50 ns more. */
	count = *(u32 *)read_only_cast(run_queue_of(current) + PREEMPT_COUNT, OFFCPU_WORD);
#elif OFFCPU_PREEMPT_COUNT == OFFCPU_PREEMPT_COUNT_OF_CPU
	count = kernel_bytes(NULL, run_queue_of(current) + PREEMPT_COUNT, sizeof(count));
#endif
	count &= INTERRUPT_MASK;
	return count == SOFTIRQ_OFFSET ? !in_own_softirq(ctx, current) : count;
}
