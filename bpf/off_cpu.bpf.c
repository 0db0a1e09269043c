// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Where threads wait: every wait of the chosen tasks, timed from switch-out to switch-in.
 *
 * The outgoing side (tp_btf/sched_switch) only notes when and in which state a task leaves its CPU, the
 * waking side (tp_btf/sched_waking) when it is woken and by whom. What costs is done when the wait is over,
 * for the waits that deserve it:
 *
 *	wait >= threshold	one raw sample (perf_offcpu/abi/offcpu.py) with kernel and user stack
 *	shorter			added to a sum per thread, state, system call, cgroup and user stack, or left out
 *
 * The incoming side sits where the kernel allows the most:
 *
 *	OFFCPU_AT_EXIT=1	tp_btf/sched_exit_tp, at the end of __schedule() (6.16 on): `current` is the
 *				sleeper and its address space is active. OFFCPU_BY_PROBE=1: a kprobe at
 *				finish_task_switch(), for the same (older kernels, if copies of stacks are asked for).
 *	OFFCPU_AT_EXIT=0	tp_btf/sched_switch, before the switch: `current` still is the task that leaves,
 *				but the sleeper's kernel stack stands as it slept.
 *
 * The kernel stack is walked there, for samples only: it costs more than all the rest. (Where most waits become
 * samples, it is taken in sched_switch in any case, where it is shorter.) The user stack is walked once a wait.
 * If every wait needs it, for sums by stack, or if the sleeper's memory cannot be reached later on, that is at
 * switch-out, where its top is still in the caches; else at the end, for samples only.
 *
 * Tasks that do not switch while the program is at work are found by two iterators over all tasks, at the
 * begin and at the end of the recording.
 *
 * Nothing is lost silently. If the map of sums is full, a short wait goes out as a sample; if the ring is
 * full, a long wait goes into the sums, without stack; what finds neither is counted, with its time.
 *
 * bcc compiles this without kernel headers (include/linux/kconfig.h) and without CO-RE: user space gives
 * the offsets of the running kernel's fields, and what else it knows, with -D (perf_offcpu/collect/bpf/defines.py):
 *
 *	OFFCPU_EVERYBODY, OFFCPU_BY_*, OFFCPU_PID_*	who is recorded (targets.h)
 *	OFFCPU_KERNEL_THREADS			whether kernel threads may be
 *	OFFCPU_STATES				what counts as a wait: a mask by enum offcpu_mode
 *	OFFCPU_KERNEL_STACKS, OFFCPU_SUM_STACKS, OFFCPU_CGROUPS, OFFCPU_SYSCALLS, OFFCPU_BUDGET,
 *	OFFCPU_WAKER_STACKS			what to take
 *	OFFCPU_KERNEL_EARLY			kernel stacks before the switch: if most waits become samples
 *	OFFCPU_SUM_CALLERS			whether sums tell callers apart without frame pointers
 *	OFFCPU_DEFER_USER			whether the perf core defers the user callchains of samples
 *	OFFCPU_DROP_SHORT, OFFCPU_MIN_BLOCK_NS	which waits to leave out
 *	OFFCPU_MAX_RATE				samples in 100 ms from which on the threshold rises; 0 any number
 *	OFFCPU_SUMS, OFFCPU_STACKS, OFFCPU_CALLERS, OFFCPU_BUDGETS, OFFCPU_TARGETS_MAX	sizes of maps
 *	OFFCPU_FRAME_LIMIT			kernel.perf_event_max_stack, at most 127
 *	OFFCPU_SCHED_TEXT, OFFCPU_SCHED_TEXT_SIZE	where the scheduler's code lies
 *	OFFCPU_WAKE_UP, OFFCPU_WAKE_UP_SIZE	where try_to_wake_up() lies
 *	OFFCPU_SWITCH_HAS_STATE			whether sched_switch passes prev_state (5.18 on)
 *	OFFCPU_PREEMPT_COUNT, PREEMPT_COUNT	where the preemption count is kept
 *	TASK_*, CSS_SET_*, CGROUP_*, KERNFS_*, REGS_*	offsets of fields
 */
#include "off_cpu.h"
#include "maps.h"
#include "facts.h"
#include "targets.h"
#include "budget.h"
#include "user_walk.h"
#include "stacks.h"
#include "callers.h"
#include "output.h"

/*
 * Begin, middle and end of a wait
 */

/* A wake-up is noted before the switch-out that it ends if the task was still on its way: by this at most. */
#define EARLY_WAKEUP_NS 1000000

/* In the flags of a task: its time off the CPU counts in its budget only. */
#define UNWANTED 0x8000

/* What a task did until it leaves its CPU. */
__inline void end_run(struct offcpu_task *storage, struct task_struct *task, u64 now)
{
	if (storage->mode == OFFCPU_RUNNING) {
		spend(storage, OFFCPU_RUNNING, now);
		return;
	}
	if (storage->mode == OFFCPU_UNKNOWN)
		begin_budget(storage, task);
	else if (WANTED(storage->mode) && !(storage->flags & UNWANTED))
		count(OFFCPU_ENDS_MISSED, 0);
	spend(storage, OFFCPU_UNKNOWN, now);
}

/* The storage of a task that leaves its CPU, if it is recorded. */
__inline struct offcpu_task *leaving(struct task_struct *task, u64 now)
{
	struct offcpu_task *storage = recorded(task);

#if OFFCPU_BUDGET && OFFCPU_PROPERTIES
	/* It may have been recorded before: what it does from here on is not known. */
	if (!storage) {
		storage = find_storage(task);
		if (storage && storage->mode) {
			end_run(storage, task, now);
			storage->mode = OFFCPU_UNKNOWN;
		}
		return 0;
	}
#endif
	return storage;
}

__inline void begin_wait(void *ctx, struct task_struct *task, u32 prev_state, bool preempted, u64 now)
{
	u32 mode = mode_of(prev_state, preempted);
	struct offcpu_control *switches = enabled();
	struct offcpu_task *storage;
	bool wanted = WANTED(mode);

	if (!switches || !is_candidate(task))
		return;
	if (!on_chosen_cpu())
		wanted = false;
	if (!OFFCPU_BUDGET && !wanted)
		return;
	storage = leaving(task, now);
	if (!storage)
		return;
	if (storage->since_ns < switches->begin_ns)
		storage->mode = OFFCPU_UNKNOWN;
	end_run(storage, task, now);
	storage->mode = mode;
	storage->prev_state = prev_state;
	storage->flags = mode != OFFCPU_PREEMPTED ? 0 :
			 preempted ? OFFCPU_PREEMPTED_WAIT : OFFCPU_PREEMPTED_WAIT | OFFCPU_YIELDED;
	if (!wanted)
		storage->flags |= UNWANTED;
	if (storage->wakeup_ns && storage->wakeup_ns + EARLY_WAKEUP_NS < now)
		storage->wakeup_ns = 0;
#if OFFCPU_BUDGET
	storage->budget.switches += 1;
	if (mode == OFFCPU_DEAD)
		end_budget(storage, task, switches->generation);
#endif
#if WALK_AT_SWITCH_OUT
	if (wanted)
		take_user_stack(ctx, task, &storage->user, TOP_OF(storage), true);
#endif
}

/* What a task did until it came to its CPU; gives its run-queue delay. */
__inline u64 end_pause(struct offcpu_task *storage, struct task_struct *task, u64 now)
{
	u64 begin = storage->since_ns, wakeup = storage->wakeup_ns, pause = now > begin ? now - begin : 0;
	u32 mode = storage->mode;

	if (mode == OFFCPU_UNKNOWN) {
		begin_budget(storage, task);
		spend(storage, is_newborn(task) ? OFFCPU_RUNNABLE : OFFCPU_UNKNOWN, now);
		return OFFCPU_NOT_KNOWN;
	}
	if (mode == OFFCPU_RUNNING) {
		count(OFFCPU_BEGINS_MISSED, 0);
		spend(storage, OFFCPU_UNKNOWN, now);
		return OFFCPU_NOT_KNOWN;
	}
	if (mode == OFFCPU_PREEMPTED || mode == OFFCPU_RUNNABLE) {
		spend(storage, mode, now);
		return pause;
	}
	if (!wakeup) {
		spend(storage, mode, now);
		return OFFCPU_NOT_KNOWN;
	}
	spend(storage, mode, wakeup < now ? wakeup : now);
	spend(storage, OFFCPU_RUNNABLE, now);
	return wakeup < begin ? pause : wakeup < now ? now - wakeup : 0;
}

/* Of everybody, those are recorded, too, that come to a CPU before they have left one. */
__inline struct offcpu_task *arriving(struct task_struct *task)
{
	struct offcpu_task *storage = find_storage(task);

	return storage || !OFFCPU_EVERYBODY || !OFFCPU_BUDGET ? storage : recorded(task);
}

__inline void end_wait(void *ctx, struct task_struct *task, u64 now)
{
	struct offcpu_control *switches = enabled();
	struct offcpu_task *storage;
	struct offcpu_wait wait = {};
	u32 mode;

	if (!switches || !is_candidate(task))
		return;
	storage = arriving(task);
	if (!storage || (!OFFCPU_BUDGET && !storage->mode))
		return;
	if (storage->since_ns < switches->begin_ns)
		storage->mode = OFFCPU_UNKNOWN;		/* from when the program was at work before */
	wait.switch_in_ns = now;
	wait.switch_out_ns = storage->since_ns;
	mode = storage->mode;
	wait.runq_ns = end_pause(storage, task, wait.switch_in_ns);
	if (mode > OFFCPU_PREEMPTED && storage->wakeup_ns)
		wait.wakeup_ns = storage->wakeup_ns > wait.switch_out_ns ? storage->wakeup_ns : wait.switch_out_ns;
	storage->mode = OFFCPU_BUDGET ? OFFCPU_RUNNING : OFFCPU_UNKNOWN;
	storage->wakeup_ns = 0;
	if (!WANTED(mode) || storage->flags & UNWANTED)
		return;
	if (wait.switch_in_ns > wait.switch_out_ns)
		wait.ns = wait.switch_in_ns - wait.switch_out_ns;
	wait.flags = storage->flags;
	if (wait.ns < OFFCPU_MIN_BLOCK_NS && !(wait.flags & OFFCPU_BEGAN_BEFORE)) {
		count(OFFCPU_TOO_SHORT, wait.ns);
		return;
	}
	if (wait.wakeup_ns)
		wait.flags |= storage->waker_flags;
	else if (OFFCPU_WAKERS && mode > OFFCPU_PREEMPTED)
		count(OFFCPU_WAKEUPS_MISSED, wait.ns);
	wait.task = task;
	wait.storage = storage;
	wait.prev_state = storage->prev_state;
	wait.pid = pid_of(task);
	wait.tid = tid_of(task);
	wait.syscall = syscall_of(task, wait.flags);
	wait.generation = switches->generation;
	wait.cgroup = cgroup_of(task);
#if WALK_AT_SWITCH_OUT
	wait.user = &storage->user;
	if (wait.flags & OFFCPU_BEGAN_BEFORE)	/* its switch-out was not seen */
		late_user_stack(ctx, task, wait.user);
#endif
	wait.wakeup_ns = forget(storage, wait.wakeup_ns);
	account(ctx, &wait, switches->threshold_ns);
}

#if OFFCPU_WAKERS
__inline void note_wakeup(void *ctx, struct task_struct *task)
{
	struct offcpu_control *switches = enabled();
	struct task_struct *current;
	struct offcpu_task *storage;
	u64 ids;

	if (!switches || !is_candidate(task))
		return;
	storage = find_storage(task);
	if (!storage)
		return;
	current = bpf_get_current_task_btf();
	ids = bpf_get_current_pid_tgid();
	storage->wakeup_ns = bpf_ktime_get_ns();
	storage->waker_pid = ids >> 32;
	storage->waker_tid = ids;
	storage->waker_flags = in_interrupt(current) ? OFFCPU_WAKER_INTERRUPT : 0;
	/* An idle thread wakes no one: where interrupts are not seen, one has hit it. */
	if (!ids && !storage->waker_flags)
		storage->waker_pid = storage->waker_tid = OFFCPU_NO_ID;
#if OFFCPU_WAKER_STACKS
	if (WANTED(storage->mode) && storage->wakeup_ns - storage->since_ns >= switches->threshold_ns)
		walk_waker(ctx, current, storage->waker_flags, &storage->waker);
#endif
}
#endif

/*
 * Tasks at the begin and at the end, whatever they do
 */

__inline u64 begin_ns(void)
{
	struct offcpu_control *switches = enabled();

	return switches ? switches->begin_ns : 0;
}

/* A task of which nothing has been heard since the recording began: what it does now, it did at the begin. */
__inline void find_task(struct task_struct *task)
{
	u32 state = FIELD(u32, task, TASK_STATE), mode;
	struct offcpu_task *storage;

	if (!enabled() || !is_candidate(task) || FIELD(u32, task, TASK_EXIT_STATE))
		return;
	storage = recorded(task);
	if (!storage || (storage->mode && storage->since_ns >= begin_ns()))
		return;
	begin_budget(storage, task);
	mode = !state || state & (TASK_WAKING | TASK_NEW) ? OFFCPU_RUNNABLE : mode_of(state, false);
	if (FIELD(TASK_ON_CPU_TYPE, task, TASK_ON_CPU))
		mode = OFFCPU_RUNNING;
	if (!OFFCPU_BUDGET && !WANTED(mode))
		return;
	storage->prev_state = state;
	storage->flags = mode > OFFCPU_PREEMPTED ? OFFCPU_BEGAN_BEFORE : 0;
	storage->mode = mode;
}

/* What a task does at the end. */
__inline void describe(struct offcpu_last *last, struct task_struct *task, struct offcpu_task *storage)
{
	last->pid = pid_of(task);
	last->tid = tid_of(task);
	last->mode = FIELD(u32, task, TASK_EXIT_STATE) ? OFFCPU_UNKNOWN : storage->mode;
	last->waits = WANTED(last->mode) && !(storage->flags & UNWANTED);
	last->state = storage->prev_state;
	last->syscall = syscall_of(task, storage->flags);
	last->flags = storage->flags | (storage->wakeup_ns ? storage->waker_flags : 0);
	last->lost = 0;
	last->waker_pid = storage->waker_pid;
	last->waker_tid = storage->waker_tid;
	last->switch_out_ns = storage->since_ns;
	last->wakeup_ns = storage->wakeup_ns;
	last->cgroup = cgroup_of(task);
	last->ip = last->sp = last->fp = 0;
#if OFFCPU_USER_REGISTERS
	if (!(FIELD(u32, task, TASK_FLAGS) & PF_KTHREAD)) {
		void *regs = (void *)bpf_task_pt_regs(task);

		last->ip = FIELD(u64, regs, REGS_IP);
		last->sp = FIELD(u64, regs, REGS_SP);
		last->fp = FIELD(u64, regs, REGS_FP);
	}
#endif
	last->nr_kernel = last->nr_user = 0;
}

/* Write down a task as it is at the end. It may be asked for twice: nothing of it is changed. */
__inline void show_task(void *seq, struct task_struct *task)
{
	struct offcpu_task *storage = find_storage(task);
	struct offcpu_scratch *to;
	struct offcpu_last *last;
	u64 nr_user = 0, size;	/* u32: what is compared would be a copy with 32 bits, unknown to be the same */
	long bytes = 0;
	u32 zero = 0;

	to = scratch.lookup(&zero);
	if (!to || !storage || !storage->mode || storage->mode == OFFCPU_DEAD)
		return;
	last = (void *)&to->sample;
	describe(last, task, storage);
#if OFFCPU_KERNEL_STACKS
	if (last->waits) {
		bytes = bpf_get_task_stack(task, to->kernel, sizeof(to->kernel), 0);
		if (bytes <= 0)
			last->lost |= OFFCPU_LOST_KERNEL_STACK;
		last->nr_kernel = bytes > 0 ? bytes / sizeof(u64) : 0;
	}
#endif
#if WALK_AT_SWITCH_OUT
	if (last->waits && !(storage->flags & OFFCPU_BEGAN_BEFORE)) {
		nr_user = storage->user.nr;
		last->lost |= storage->user.lost;
		last->nr_user = nr_user;
	}
#endif
	bpf_seq_write(seq, last, sizeof(*last));
#if OFFCPU_BUDGET
	bpf_seq_write(seq, &storage->budget, sizeof(storage->budget));
#endif
	/*
	 * Nothing at all may be written, too: clang makes one comparison of "more than 0 and at most so many", of
	 * the number less 1, and verifiers up to Linux 6.12 do not see what that says of the number.
	 */
	size = bytes > 0 ? bytes : 0;
	BOUNDED(size);
	if (size <= sizeof(to->kernel))
		bpf_seq_write(seq, to->kernel, size);
#if WALK_AT_SWITCH_OUT
	BOUNDED(nr_user);
	if (nr_user <= OFFCPU_FRAMES)
		bpf_seq_write(seq, storage->user.ips, nr_user * sizeof(u64));
#endif
}

/*
 * Programs. Their names are known to perf_offcpu/collect/bpf/program.py.
 */

/* tp_btf/sched_switch(bool preempt, struct task_struct *prev, *next, unsigned int prev_state) */
int offcpu_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1];
	u64 now = bpf_ktime_get_ns();

#if OFFCPU_AT_EXIT
	u32 zero = 0;
	u64 *last = switched.lookup(&zero);

	if (last)
		*last = now;
#if OFFCPU_KERNEL_EARLY
	walk_early((void *)ctx[2], now);
#endif
#else
	end_wait(ctx, (void *)ctx[2], now);
#endif
	/* A task preempted on its way to sleep keeps its new state but stays runnable: that is no wait. */
#if OFFCPU_SWITCH_HAS_STATE
	begin_wait(ctx, prev, ctx[3], ctx[0], now);
#else
	begin_wait(ctx, prev, FIELD(u32, prev, TASK_STATE), ctx[0], now);
#endif
	return 0;
}

#if OFFCPU_AT_EXIT
/* tp_btf/sched_exit_tp(bool is_switch), or OFFCPU_BY_PROBE: kprobe/finish_task_switch */
int offcpu_switched(u64 *ctx)
{
	u32 zero = 0;
	u64 *last = switched.lookup(&zero), now;

	if (!last || !(OFFCPU_BY_PROBE || ctx[0]))
		return 0;
	/* Interrupts may have come in between: the task has been on its CPU since the switch. */
	now = *last ? *last : bpf_ktime_get_ns();
	*last = 0;
	end_wait(ctx, bpf_get_current_task_btf(), now);
	return 0;
}
#endif

#if !OFFCPU_EVERYBODY
__inline void forget_target(u32 kind, u32 id)
{
	struct offcpu_target_key key = {.kind = kind, .id = id};

	targets.delete(&key);
}

/* tp_btf/sched_process_fork(struct task_struct *parent, *child): children of the recorded are recorded. */
int offcpu_fork(u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	u32 tid = tid_of(child);

	/* A new owner of a target's id is not the target. */
	forget_target(OFFCPU_THREAD, tid);
	if (tid == pid_of(child))
		forget_target(OFFCPU_PROCESS, tid);
	if (find_storage(parent) || is_target(parent))
		create_storage(child);
	return 0;
}

/* tp_btf/sched_process_exec(struct task_struct *task, …): what an armed command does from here on counts. */
int offcpu_exec(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	u32 *target = find_target(OFFCPU_PROCESS, pid_of(task));

	if (target && *target == OFFCPU_TARGET_ARMED) {
		*target = OFFCPU_TARGET_ACTIVE;
		begin_running(create_storage(task));
	}
	return 0;
}
#endif

#if OFFCPU_WAKERS
/* tp_btf/sched_waking(struct task_struct *task): still in the context of who wakes, unlike sched_wakeup. */
int offcpu_waking(u64 *ctx)
{
	note_wakeup(ctx, (void *)ctx[0]);
	return 0;
}
#endif

/* iter/task(struct bpf_iter_meta *meta, struct task_struct *task): at the begin */
int offcpu_first(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[1];

	if (task)
		find_task(task);
	return 0;
}

/* iter/task: at the end; user space reads what is shown (struct offcpu_last) */
int offcpu_last(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[1];
	void *meta = (void *)ctx[0];

	if (task)
		show_task(FIELD(void *, meta, 0), task);
	return 0;
}

/* For sampling events (PERF_EVENT_IOC_SET_BPF): keep only samples of recorded tasks, and count them. */
int offcpu_filter(void *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();

#if !OFFCPU_EVERYBODY
	if (!find_storage(task) && !is_target(task))
		return 0;
#endif
	if (!has_properties(task))
		return 0;
	count(OFFCPU_ONCPU_SAMPLES, 0);
	return 1;
}
