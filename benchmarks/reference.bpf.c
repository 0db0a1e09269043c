// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * References for the cost of off_cpu.bpf.c (benchmarks/bpf_cost.py): the plain way of off-CPU
 * profiling, all of it on sched_switch. The user stack of the outgoing task is walked at every
 * switch-out. At switch-in the wait is added to a sum per thread, state and stack.
 *
 *	REFERENCE_WALKS=1	the stack goes into a stack map
 *	REFERENCE_WALKS=2	a second walk copies it, in case the wait becomes a sample: the
 *				shape of perf record --off-cpu since 6.16
 *	REFERENCE_WALKS=0	a program that does nothing, for the tracepoints of off_cpu.bpf.c
 */
#include <linux/types.h>

#define FIELD(type, object, offset) (*(type *)((char *)(object) + (offset)))
#define PF_KTHREAD 0x00200000
#define FRAMES 32

#if !REFERENCE_WALKS
int nothing(u64 *ctx)
{
	return 0;
}
#else
struct task_struct;

struct reference_task {
	u64 switch_out_ns;
	u32 state;
	int stack;
#if REFERENCE_WALKS > 1
	u64 ips[FRAMES];
#endif
};

struct reference_key {
	u32 pid, tid, state;
	int stack;
};

BPF_TASK_STORAGE(tasks, struct reference_task);
BPF_TABLE("hash", struct reference_key, u64, sums, OFFCPU_SUMS);
BPF_STACK_TRACE(stacks, OFFCPU_STACKS);

/* tp_btf/sched_switch(bool preempt, struct task_struct *prev, *next, unsigned int prev_state) */
int reference_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	u32 state = FIELD(u32, prev, TASK_STATE) & 0xff;
	u64 now = bpf_ktime_get_ns(), *sum;
	struct reference_task *task;

	if ((state == 1 || state == 2) && !ctx[0] && !(FIELD(u32, prev, TASK_FLAGS) & PF_KTHREAD)) {
		task = tasks.task_storage_get(prev, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (task) {
			task->switch_out_ns = now;
			task->state = state;
			task->stack = stacks.get_stackid(ctx, BPF_F_FAST_STACK_CMP |
							      BPF_F_USER_STACK);
#if REFERENCE_WALKS > 1
			bpf_get_stack(ctx, task->ips, sizeof(task->ips), BPF_F_USER_STACK);
#endif
		}
	}
	task = tasks.task_storage_get(next, 0, 0);
	if (task && task->switch_out_ns) {
		struct reference_key key = {
			.pid = FIELD(u32, next, TASK_TGID),
			.tid = FIELD(u32, next, TASK_PID),
			.state = task->state,
			.stack = task->stack,
		};
		u64 ns = now - task->switch_out_ns;

		sum = sums.lookup(&key);
		if (sum)
			*sum += ns;
		else
			sums.update(&key, &ns);
		task->switch_out_ns = 0;
	}
	return 0;
}
#endif
