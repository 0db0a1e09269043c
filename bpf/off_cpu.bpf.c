// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Record where threads wait: every wait of the chosen tasks, from switch-out to switch-in.
 *
 * At switch-out (tp_btf/sched_switch) only time and state are noted, at a wake-up (tp_btf/
 * sched_waking) waker and time. The costly work is done when the wait has ended, by its length:
 *
 *	wait >= threshold	one raw sample (perf_offcpu/abi/offcpu.py) with both stacks
 *	shorter			added to a sum per thread, state, system call and cgroup; its
 *				user stack is taken if it is drawn (output.h); or left out
 *
 * The end of a wait is traced where the kernel allows most:
 *
 *	OFFCPU_AT_EXIT=1	tp_btf/sched_exit_tp, at the end of __schedule() (since 6.16):
 *				`current` is the sleeper and its address space is active. On older
 *				kernels, with OFFCPU_BY_PROBE=1, a kprobe at finish_task_switch(),
 *				if stacks are to be copied.
 *	OFFCPU_AT_EXIT=0	tp_btf/sched_switch, before the switch: `current` is still the task
 *				that leaves, but the kernel stack of the sleeper is as it slept.
 *
 * With OFFCPU_SAMPLING all waits end in sched_switch; what runs at the end of __schedule() returns
 * at once for those that are no samples.
 *
 * The kernel stack is walked at the end of a wait, for samples only: it costs more than all the
 * rest. (Where most waits become samples, in sched_switch: there the stack is shorter.) The user
 * stack is walked once in a wait: at switch-out for sums by stack, or if the sleeper's memory
 * cannot be reached later; otherwise at the end, for samples only.
 *
 * Iterators over all tasks, at begin and end of the recording, find those that do not switch. If
 * the map of sums is full, a short wait is sent as a sample; if the ring is full, a long wait is
 * summed, without stack. If both fail, its time is counted.
 *
 * bcc compiles this file without kernel headers (README.md) and without CO-RE. User space passes
 * constants with -D (perf_offcpu/collect/bpf/defines.py, kernel/). Options are members of struct
 * offcpu_control; constants are those that would cost something unused:
 *
 *	OFFCPU_AT_EXIT, OFFCPU_BY_PROBE		see above: the contexts differ
 *	OFFCPU_SUM_DRAWN	stacks of some short waits, drawn by length
 *	OFFCPU_SUM_STACKS	sums by user stack: 1 KB a task, a walk every wait
 *	OFFCPU_SUM_CALLERS	sums by callers (callers.h): 650 bytes a task, a read every wait
 *	OFFCPU_COPIES, OFFCPU_JVMS	copies of stacks by need; size of a map (copies.h)
 *	OFFCPU_WAKER_STACKS	stacks of wakers: 2 KB a task
 *	OFFCPU_BUDGET		where time goes: 192 bytes a task, work every switch
 *	OFFCPU_KERNEL_EARLY	kernel stacks before the switch: a look at each incoming task
 *	OFFCPU_OBJECTS, OFFCPU_NEW_OBJECTS	objects.h: sizes of its table and queue, 0 without
 *	OFFCPU_PYTHON, ..._PYTHON_CODES, OFFCPU_NEW_CODES	python.h: likewise
 *	OFFCPU_LOCK_OWNERS	who holds a lock: work in each wait in a system call
 *	OFFCPU_SAMPLING		one sample for each period of waiting (sampling.h)
 *	OFFCPU_BY_GROUP		control groups: 1 by v2, 2 by the v1 hierarchy at CSS_SET_CSS, 0 no
 *	OFFCPU_SUMS, ..._STACKS, ..._CALLERS, ..._BUDGETS, ..._TARGETS_MAX: sizes of maps
 *
 * Constants by kernel:
 *	OFFCPU_FRAME_LIMIT	kernel.perf_event_max_stack, at most 127
 *	OFFCPU_MAY_GOTO, OFFCPU_FRAME_POINTERS, CODE_MASK	see loops.h and user_walk.h
 *	MODE_MASK, MODE_64	how the mode of 64-bit programs is known
 *	THREAD_BYTES, ALIGNED	pthread_self() is this near below the thread pointer; words that
 *				are multiples of it may be of malloc()
 *	OFFCPU_USER_REGISTERS	whether bpf_task_pt_regs() has registers
 *	OFFCPU_ARM64		the machine is no x86
 *	OFFCPU_IRQ_STACK, IRQ_STACK_*	whether and where the stack of interrupts is
 *	OFFCPU_SWITCH_HAS_STATE	whether sched_switch passes prev_state (since 5.18)
 *	OFFCPU_PREEMPT_COUNT, PREEMPT_COUNT	whose (0 none, ..._OF_TASK, _OF_CPU), and where
 *	INTERRUPT_MASK		which of its bits say that an interrupt is served
 *	OFFCPU_READ_ONLY_CAST	a kernel function; OFFCPU_WORD, OFFCPU_TASK_STRUCT: types
 *	OFFCPU_SYSCALL_NUMBERS	size of the table of system calls
 *	TASK_*, FILE_*, SOCK_*, TCP_*, ...	offsets of members; 0: this kernel lacks it
 *
 * What differs from boot to boot is no constant, but a late value: enum offcpu_late (loops.h).
 */
#include "output.h"
#include "budget.h"
#include "sampling.h"

/* A wake-up may come before the switch-out that it ends, by this at most. */
#define EARLY_WAKEUP_NS 1000000
/* In the flags of a task: this time off the CPU only counts in its budget. */
#define UNWANTED 0x8000

/* Account the time until a task leaves its CPU. */
static __always_inline void end_run(const struct offcpu_control *ctl, struct offcpu_task *storage,
				    struct task_struct *task, u64 now)
{
	u32 mode = storage->mode;

	if (mode == OFFCPU_UNKNOWN)
		begin_budget(ctl, storage, task);
	else if (is_wanted(ctl, mode) && !(storage->flags & UNWANTED))
		count(OFFCPU_ENDS_MISSED, 0);
	spend(storage, mode == OFFCPU_RUNNING ? OFFCPU_RUNNING : OFFCPU_UNKNOWN, now);
}

/* The storage of a task that leaves its CPU; NULL if it is not recorded. */
static __always_inline struct offcpu_task *leaving(const struct offcpu_control *ctl,
						   struct task_struct *task, u64 now)
{
	struct offcpu_task *storage;

	if (has_properties(ctl, task))
		return recorded(ctl, task);
	/* If it was recorded before, it has lost a property: its mode is unknown from now on. */
	storage = OFFCPU_BUDGET ? find_storage(task) : NULL;
	if (storage && storage->mode) {
		end_run(ctl, storage, task, now);
		storage->mode = OFFCPU_UNKNOWN;
	}
	return NULL;
}

static __always_inline void begin_wait(void *ctx, struct task_struct *task, u32 prev_state,
				       bool preempted, u64 now)
{
	struct offcpu_control *ctl = enabled();
	struct offcpu_task *storage;
	bool wanted;
	u32 mode;

	if (!ctl || !is_candidate(ctl, task))
		return;
	mode = mode_of(prev_state, preempted);
	if (mode == OFFCPU_PREEMPTED && is_throttled(task))
		mode = OFFCPU_THROTTLED;
	mode = unknown(ctl, mode);
	preempted = unknown(ctl, preempted);
	wanted = unknown(ctl, is_wanted(ctl, mode) && (!ctl->by_cpu ||
			 find_target(OFFCPU_CPU, bpf_get_smp_processor_id())));
	storage = OFFCPU_BUDGET || wanted ? leaving(ctl, task, now) : NULL;
	if (!storage)
		return;
	if (storage->since_ns < ctl->begin_ns)
		storage->mode = OFFCPU_UNKNOWN;
	end_run(ctl, storage, task, now);
	note_clock(storage, task);
	storage->mode = mode;
	storage->prev_state = prev_state;
	storage->flags = flags_of(mode, preempted);
	if (!wanted)
		storage->flags |= UNWANTED;
	if (storage->wakeup_ns && storage->wakeup_ns + EARLY_WAKEUP_NS < now)
		storage->wakeup_ns = 0;
	if (OFFCPU_BUDGET) {
		note_figures(storage->budget, task);
		storage->budget->switches += 1;
		if (mode == OFFCPU_DEAD)
			end_budget(storage, task, ctl->generation);
	}
	if (wanted)
		note_kernel_lock(storage, task);
	storage->holder_tid = OFFCPU_LOCK_OWNERS && wanted && mode > OFFCPU_PREEMPTED ?
			      lock_owner(task) : OFFCPU_NO_ID;
	if (WALK_AT_SWITCH_OUT && wanted)
		take_user_stack(ctx, ctl, task, storage->user,
				OFFCPU_SUM_CALLERS ? storage->top : NULL, true);
}

/* Account the time until a task comes to its CPU. Return its run-queue delay. */
static __always_inline u64 end_pause(const struct offcpu_control *ctl, struct offcpu_task *storage,
				     struct task_struct *task, u64 now)
{
	u64 begin = storage->since_ns, wakeup = storage->wakeup_ns, queued;
	u64 pause = now > begin ? now - begin : 0;
	u32 mode = storage->mode;

	if (mode <= OFFCPU_RUNNING) {
		if (mode == OFFCPU_RUNNING)
			count(OFFCPU_BEGINS_MISSED, 0);
		else
			begin_budget(ctl, storage, task);
		spend(storage, mode || switches_of(task) ? OFFCPU_UNKNOWN : OFFCPU_RUNNABLE, now);
		return OFFCPU_NOT_KNOWN;
	}
	if (mode <= OFFCPU_PREEMPTED) {
		spend(storage, mode, now);
		return mode == OFFCPU_THROTTLED ? OFFCPU_NOT_KNOWN : pause;
	}
	if (OFFCPU_SAMPLING) {
		queued = queued_for(storage, task, pause);
	} else if (!wakeup) {
		spend(storage, mode, now);
		return OFFCPU_NOT_KNOWN;
	} else {
		queued = wakeup < now ? now - wakeup : 0;
		leave_out_delay(storage, task, queued);
	}
	queued = min(queued, pause);
	spend(storage, mode, now - queued);
	spend(storage, OFFCPU_RUNNABLE, now);
	return queued;
}

/* Account a time off the CPU that ends; true if it was a wait that is to be sent or summed. */
static __always_inline bool end_time(struct offcpu_run *run, u64 now)
{
	const struct offcpu_control *ctl = run->ctl;
	struct task_struct *task = run->task;
	struct offcpu_wait *wait = run->wait;
	struct offcpu_task *storage;
	u64 wakeup;

	if (!is_candidate(ctl, task))
		return false;
	storage = find_storage(task);
	/* A task that has not left a CPU since recording began: its budget begins. */
	if (!storage && OFFCPU_BUDGET && ctl->everybody && has_properties(ctl, task))
		storage = create_storage(task);
	if (!storage || (!OFFCPU_BUDGET && !storage->mode))
		return false;
	run->storage = storage;
	if (storage->since_ns < ctl->begin_ns)
		storage->mode = OFFCPU_UNKNOWN;	/* left from before: recording was disabled */
	wait->switch_out_ns = storage->since_ns;
	wait->mode = storage->mode;
	wait->runq_ns = end_pause(ctl, storage, task, now);
	wakeup = wait->mode > OFFCPU_PREEMPTED ? storage->wakeup_ns : 0;
	storage->mode = OFFCPU_BUDGET ? OFFCPU_RUNNING : OFFCPU_UNKNOWN;
	storage->wakeup_ns = 0;
	if (!is_wanted(ctl, wait->mode) || storage->flags & UNWANTED)
		return false;
	wait->switch_in_ns = now;
	wait->ns = wait->length = now > wait->switch_out_ns ? now - wait->switch_out_ns : 0;
	wait->count = 1;
	if (wait->length < ctl->min_block_ns && !(storage->flags & OFFCPU_BEGAN_BEFORE)) {
		count(OFFCPU_TOO_SHORT, wait->length);
		return false;
	}
	if (OFFCPU_SAMPLING && !(storage->flags & OFFCPU_BEGAN_BEFORE) && !draw(run)) {
		count(OFFCPU_UNSAMPLED, wait->length);
		return false;
	}
	if (OFFCPU_SAMPLING && wakeup)
		wakeup = now - wait->runq_ns;
	wait->wakeup_ns = wakeup && wakeup < wait->switch_out_ns ? wait->switch_out_ns : wakeup;
	return true;
}

/* Send or sum a wait after end_time(). */
static __always_inline void finish_wait(struct offcpu_run *run)
{
	struct offcpu_task *storage = run->storage;
	struct task_struct *task = run->task;
	struct offcpu_wait *wait = run->wait;

	barrier();
	wait->flags = storage->flags;
	wait->waker_tid = wait->wakeup_ns ? storage->waker_tid : 0;
	if (wait->wakeup_ns)
		wait->flags |= storage->waker_flags;
	else if (run->ctl->wakers && wait->mode > OFFCPU_PREEMPTED)
		count(OFFCPU_WAKEUPS_MISSED, wait->ns);
	wait->prev_state = storage->prev_state;
	wait->pid = pid_of(task);
	wait->tid = tid_of(task);
	wait->syscall = syscall_of(task, wait->flags);
	wait->cgroup = cgroup_of(task);
	wait->blocker = wait->mode > OFFCPU_PREEMPTED ? storage->blocker : 0;
	wait->object_id = wait->stack = wait->caller = wait->copied = wait->hash = wait->drawn = 0;
	wait->copy = OFFCPU_COPY_FIRST;
	wait->generation = run->ctl->generation;
	wait->first = false;
	run->user = WALK_AT_SWITCH_OUT ? storage->user : NULL;
	if (run->user && wait->flags & OFFCPU_BEGAN_BEFORE)	/* its switch-out was not traced */
		take_user_stack(run->ctx, run->ctl, task, run->user, NULL, false);
	account(run);
}

static __always_inline void end_wait(void *ctx, struct task_struct *task, u64 now,
				     struct offcpu_wait *wait)
{
	struct offcpu_run run = { .ctx = ctx, .ctl = enabled(), .task = task, .wait = wait };

	if (run.ctl && end_time(&run, now))
		finish_wait(&run);
}

/* Note who wakes a task: `current`, or an interrupt. */
static __always_inline void note_waker(void *ctx, const struct offcpu_control *ctl,
				       struct offcpu_task *storage)
{
	struct task_struct *current = bpf_get_current_task_btf();

	storage->waker_pid = pid_of(current);
	storage->waker_tid = tid_of(current);
	storage->waker_flags = in_interrupt(ctx, current) ? OFFCPU_WAKER_INTERRUPT : 0;
	/* An idle thread wakes no other: an interrupt did that cannot be recognized here. */
	if (!storage->waker_tid && !storage->waker_flags)
		storage->waker_pid = storage->waker_tid = OFFCPU_NO_ID;
	if (OFFCPU_WAKER_STACKS && is_wanted(ctl, storage->mode) &&
	    (OFFCPU_SAMPLING ? would_be_drawn(ctl, storage) :
	     storage->wakeup_ns - storage->since_ns >= ctl->threshold_ns))
		walk_waker(ctx, ctl, current, storage);
}

static __always_inline void describe_task(const struct offcpu_run *run, struct offcpu_last *last)
{
	struct offcpu_task *storage = run->storage;
	struct task_struct *task = run->task;
	void *mm = OFFCPU_COPIES ? POINTER(task, TASK_MM) : NULL;
	u32 state = FIELD(u32, task, TASK_STATE);

	__builtin_memset(last, 0, sizeof(*last));
	last->pid = pid_of(task);
	last->tid = tid_of(task);
	last->mode = FIELD(u32, task, TASK_EXIT_STATE) ? OFFCPU_UNKNOWN : storage->mode;
	last->waits = is_wanted(run->ctl, last->mode) && !(storage->flags & UNWANTED);
	last->state = storage->prev_state;
	last->syscall = syscall_of(task, storage->flags);
	/* Not a wake-up before the switch-out: one that ends the wait has changed the state. */
	last->wakeup_ns = !state || state & TASK_WAKING ? woken_at(storage, task) : 0;
	last->flags = storage->flags | (last->wakeup_ns ? storage->waker_flags : 0);
	last->waker_pid = storage->waker_pid;
	last->waker_tid = storage->waker_tid;
	last->switch_out_ns = storage->since_ns;
	last->cgroup = cgroup_of(task);
	last->queued_ns = TASK_RUN_DELAY ? FIELD(u64, task, TASK_RUN_DELAY) : 0;
	last->asked_ns = OFFCPU_NOT_KNOWN;
	last->holder_tid = OFFCPU_NO_ID;
	last->nr_switches = switches_of(task);
	if (OFFCPU_USER_REGISTERS && !is_kernel_thread(task))
		bpf_probe_read_kernel(last->regs, REGS_SIZE, (void *)bpf_task_pt_regs(task));
	if (mm && !is_kernel_thread(task))
		last->stack_end = stack_end(task, mm, last->regs[REGS_SP / sizeof(u64)]);
}

/* Add what a task that still waits is waiting for. */
static __always_inline void describe_object(struct offcpu_run *run, struct offcpu_last *last)
{
	const struct offcpu_object *object = &run->to->object;
	struct offcpu_polled key = {last->switch_out_ns, last->tid};
	struct offcpu_wait wait = {
		.switch_out_ns = last->switch_out_ns, .prev_state = last->state,
		.pid = last->pid, .syscall = last->syscall,
		.blocker = last->mode > OFFCPU_PREEMPTED ? run->storage->blocker : 0,
	};
	u32 *fd = polled.lookup(&key);

	run->wait = &wait;
	find_object(run, false, false, fd ? *fd : -1);
	last->object_id = object->id;
	last->asked_ns = object->asked_ns;
	run->to->tcp_nr = 0;
	read_tcp(run->to);
	last->tcp_nr = run->to->tcp_nr;
	__builtin_memcpy(last->tcp, &run->to->tcp, sizeof(last->tcp));
	last->object_lost = object->lost;
	last->holder_tid = wait.blocker ? run->storage->blocker_tid : run->storage->holder_tid;
}

/* Programs. perf_offcpu/collect/bpf/defines.py and program.py know their names. */

/* Note before the switch which task comes to the CPU: its wait ends in offcpu_switched(). */
static __always_inline void note_switch(struct offcpu_switch *to, struct task_struct *next, u64 now)
{
	struct offcpu_run run = { .task = next, .wait = &to->wait };

	to->next = (u64)next;
	if (!OFFCPU_SAMPLING) {
		to->now = now;
		if (OFFCPU_KERNEL_EARLY)
			walk_if_long(next, now);
		return;
	}
	/* Few waits are samples: the others end here, where the clock was read already. */
	run.ctl = enabled();
	to->drawn = run.ctl && end_time(&run, now);
	if (OFFCPU_KERNEL_EARLY && to->drawn)
		walk_early(next, to->wait.switch_out_ns);
}

/* Whether a task is known not to be recorded: at once, since such tasks must not pay for others. */
static __always_inline bool is_stranger(const struct offcpu_control *ctl, struct task_struct *task)
{
	return ctl->all_found && !has_storage(task);
}

/* tp_btf/sched_switch(bool preempt, struct task_struct *prev, *next, unsigned int prev_state) */
int offcpu_switch(u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	struct offcpu_control *ctl = get_control();
	struct offcpu_switch *last = switched.lookup(ONLY_KEY);
	u64 now;

	if (!last || !ctl)
		return 0;
	if (is_stranger(ctl, prev) && is_stranger(ctl, next)) {
		last->next = 0;
		return 0;
	}
	now = bpf_ktime_get_ns();
	if (OFFCPU_AT_EXIT)
		note_switch(last, next, now);
	else
		end_wait(ctx, next, now, &last->wait);
	/* A task preempted on its way to sleep has its new state but stays runnable. */
	begin_wait(ctx, prev, OFFCPU_SWITCH_HAS_STATE ? ctx[3] : FIELD(u32, prev, TASK_STATE),
		   ctx[0], now);
	return 0;
}

#if OFFCPU_AT_EXIT
/* Send the wait of `current` that ended, if it is a sample. */
static __always_inline void finish_drawn(void *ctx, struct offcpu_switch *last)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct offcpu_run run = { .ctx = ctx, .task = task, .wait = &last->wait };
	bool traced = last->next == (u64)task;

	if (traced && !last->drawn)
		return;
	run.ctl = enabled();
	if (!run.ctl) {
		if (traced)
			count(OFFCPU_WAITS_LOST, last->wait.length);
		return;
	}
	/* Some tasks come to a CPU, or leave it, without the tracepoint. */
	if (!traced && !end_time(&run, bpf_ktime_get_ns()))
		return;
	last->drawn = false;
	run.storage = find_storage(task);
	if (run.storage)
		finish_wait(&run);
}

/* tp_btf/sched_exit_tp(bool is_switch), or with OFFCPU_BY_PROBE kprobe/finish_task_switch */
int offcpu_switched(u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct offcpu_control *ctl = get_control();
	struct offcpu_switch *last;
	u64 now;

	if (!(OFFCPU_BY_PROBE || ctx[0]) || !ctl || is_stranger(ctl, task))
		return 0;
	last = switched.lookup(ONLY_KEY);
	if (!last)
		return 0;
	if (OFFCPU_SAMPLING) {
		finish_drawn(ctx, last);
		return 0;
	}
	/*
	 * The task has been on its CPU since the switch: interrupts may have come since then. But
	 * if that was not traced, as of some tasks it is not, the time is that of another switch.
	 */
	now = last->next == (u64)task ? last->now : 0;
	last->now = 0;
	end_wait(ctx, task, now ? now : bpf_ktime_get_ns(), &last->wait);
	return 0;
}
#endif

#if OFFCPU_PYTHON
/* Called by offcpu_switched(), which has made a sample: add the Python functions, and send it. */
int offcpu_python(u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct offcpu_run run = { .ctx = ctx, .ctl = get_control(), .task = task };
	struct offcpu_switch *last = switched.lookup(ONLY_KEY);
	struct offcpu_walk *walk = walks.lookup(ONLY_KEY);

	run.to = scratch.lookup(ONLY_KEY);
	run.storage = find_storage(task);
	if (!run.ctl || !last || !walk || !run.to || !run.storage)
		return 0;
	run.wait = &last->wait;
	if (walk_known(&run, walk))
		append_walk(run.to, walk);
	send_sample(&run);
	return 0;
}
#endif

/* tp_btf/sched_process_fork(struct task_struct *parent, *child) */
int offcpu_fork(u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	struct offcpu_target_key key = {OFFCPU_THREAD, tid_of(child)};
	struct offcpu_control *ctl = get_control();
	u32 pid = pid_of(parent);
	struct offcpu_python *at = pythons.lookup(&pid);

	/* The new owner of a target's id is not the target. */
	targets.delete(&key);
	key.kind = OFFCPU_PROCESS;
	if (key.id == pid_of(child)) {
		targets.delete(&key);
		at = at && !pythons.update(&key.id, at) ? pythons.lookup(&key.id) : NULL;
		if (at)
			at->mm = (u64)POINTER(child, TASK_MM);	/* until it calls execve() */
	}
	if (find_storage(parent) || (ctl && is_target(ctl, parent)))
		create_storage(child);
	return 0;
}

/* tp_btf/sched_process_exec(struct task_struct *task, ...): activate an armed command */
int offcpu_exec(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	u32 *target = find_target(OFFCPU_PROCESS, pid_of(task));
	struct offcpu_task *storage;

	if (!target || *target != OFFCPU_TARGET_ARMED)
		return 0;
	*target = OFFCPU_TARGET_ACTIVE;
	storage = create_storage(task);
	if (OFFCPU_BUDGET && storage && !storage->mode) {
		storage->since_ns = storage->budget->begin_ns = bpf_ktime_get_ns();
		note_ids(storage->budget, task);
		storage->mode = OFFCPU_RUNNING;
	}
	return 0;
}

/* tp_btf/sched_waking(struct task_struct *task): in the waker's context, unlike sched_wakeup */
int offcpu_waking(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	struct offcpu_control *ctl = enabled();
	struct offcpu_task *storage = ctl && is_candidate(ctl, task) ? find_storage(task) : NULL;

	if (!storage)
		return 0;
	storage->wakeup_ns = OFFCPU_SAMPLING && storage->mode > OFFCPU_PREEMPTED ?
			     WOKEN : bpf_ktime_get_ns();
	note_waker(ctx, ctl, storage);
	return 0;
}

/* iter/task(struct bpf_iter_meta *meta, struct task_struct *task), at begin: note its mode. */
int offcpu_first(u64 *ctx)
{
	struct task_struct *task = (void *)ctx[1];
	struct offcpu_control *ctl = enabled();
	struct offcpu_task *storage;
	u32 state, mode;

	if (!task || !ctl || !is_candidate(ctl, task) || FIELD(u32, task, TASK_EXIT_STATE))
		return 0;
	state = FIELD(u32, task, TASK_STATE);
	storage = has_properties(ctl, task) ? recorded(ctl, task) : NULL;
	if (!storage || (storage->mode && storage->since_ns >= ctl->begin_ns))
		return 0;
	begin_budget(ctl, storage, task);
	mode = !state || state & (TASK_WAKING | TASK_NEW) ? OFFCPU_RUNNABLE : mode_of(state, false);
	if (!state && is_throttled(task))
		mode = OFFCPU_THROTTLED;
	if (FIELD(TASK_ON_CPU_TYPE, task, TASK_ON_CPU))
		mode = OFFCPU_RUNNING;
	if (!OFFCPU_BUDGET && !is_wanted(ctl, mode))
		return 0;
	note_clock(storage, task);
	storage->prev_state = state;
	storage->flags = flags_of(mode, false);
	if (mode > OFFCPU_PREEMPTED || mode == OFFCPU_THROTTLED)
		storage->flags |= OFFCPU_BEGAN_BEFORE;
	storage->mode = mode;
	note_kernel_lock(storage, task);
	return 0;
}

/* iter/task, at the end: write a task as struct offcpu_last, twice if the buffer is short. */
int offcpu_last(u64 *ctx)
{
	void *meta = (void *)ctx[0], *task = (void *)ctx[1], *seq;
	struct offcpu_run run = { .ctl = get_control(), .task = task };
	struct offcpu_task *storage;
	struct offcpu_scratch *to;
	struct offcpu_last *last;
	u64 nr_user = 0, size;	/* not u32: clang would compare a copy, unknown to be the same */
	long bytes = 0;

	run.to = to = scratch.lookup(ONLY_KEY);
	if (!to || !run.ctl || !task)
		return 0;
	run.storage = storage = find_storage(task);
	if (!storage || !storage->mode || storage->mode == OFFCPU_DEAD)
		return 0;
	seq = FIELD(void *, meta, 0);
	last = (void *)&to->sample;
	describe_task(&run, last);
	if (OFFCPU_OBJECTS && last->waits)
		describe_object(&run, last);
	if (last->waits && run.ctl->kernel_stacks) {
		bytes = bpf_get_task_stack(task, to->kernel, sizeof(to->kernel), 0);
		if (bytes <= 0)
			last->lost |= OFFCPU_LOST_KERNEL_STACK;
		last->nr_kernel = bytes > 0 ? bytes / sizeof(u64) : 0;
	}
	if (WALK_AT_SWITCH_OUT && last->waits && !(storage->flags & OFFCPU_BEGAN_BEFORE)) {
		nr_user = storage->user->nr;
		last->lost |= storage->user->lost;
		last->nr_user = nr_user;
	}
	bpf_seq_write(seq, last, sizeof(*last));
	if (OFFCPU_BUDGET)
		bpf_seq_write(seq, storage->budget, sizeof(storage->budget));
	/*
	 * Sizes of 0 are written, too. If they were left out, clang would make one comparison of
	 * both bounds, which verifiers up to Linux 6.12 do not understand.
	 */
	size = bytes > 0 ? bytes : 0;
	barrier_var(size);
	if (size <= sizeof(to->kernel))
		bpf_seq_write(seq, to->kernel, size);
	if (WALK_AT_SWITCH_OUT) {
		barrier_var(nr_user);
		if (nr_user <= OFFCPU_FRAMES)
			bpf_seq_write(seq, storage->user->ips, nr_user * sizeof(u64));
	}
	return 0;
}

/* For sampling events (PERF_EVENT_IOC_SET_BPF): pass samples of recorded tasks, and count them. */
int offcpu_filter(void *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct offcpu_control *ctl = get_control();

	if (!ctl || (!is_target(ctl, task) && !find_storage(task)) || !has_properties(ctl, task))
		return 0;
	count(OFFCPU_ONCPU_SAMPLES, 0);
#if OFFCPU_PYTHON && OFFCPU_MAY_GOTO	/* without may_goto, its work is the verifier's limit */
	name_sample(ctx, ctl, task);
#endif
	return 1;
}
