/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ways out of the kernel for a wait: a sum, a sample, or a counter. */
#pragma once

#include "callers.h"
#include "python.h"
#include "tcp.h"

/* include/uapi/linux/perf_event.h */
#define PERF_CONTEXT_KERNEL ((u64)-128)
#define PERF_CONTEXT_USER ((u64)-512)
#define PERF_CONTEXT_USER_DEFERRED ((u64)-640)
#define ENOSPC 28

#define RATE_FIRST_NS 1000		/* the first step of a threshold of 0 */
#define SUM_FLAGS (OFFCPU_PREEMPTED_WAIT | OFFCPU_YIELDED | OFFCPU_THROTTLED_WAIT | OFFCPU_DRAWN)
#define SUM_FLAGS_SHIFT 25		/* to the top of 32 bits, where states have none */
#define CGROUP_MULTIPLIER 0x9e3779b97f4a7c15ULL	/* 2^64 / golden ratio: not the one of mix() */

static __always_inline struct offcpu_sum_key sum_key(struct offcpu_wait *wait)
{
	u32 state = wait->prev_state ^ (wait->flags & SUM_FLAGS) << SUM_FLAGS_SHIFT;
	u64 what = (u64)(u32)wait->syscall << 32 | state;
	u64 who = wait->caller ? wait->caller : wait->stack;
	struct offcpu_sum_key key = {
		.tid = wait->tid, .generation = wait->generation,
		.kind = (who ^ wait->object_id ^ what * HASH_MULTIPLIER) +
			wait->cgroup * CGROUP_MULTIPLIER,
	};

	return key;
}

/* Add a wait to its sum. No atomics: two waits of one thread never end at the same time. */
static __always_inline void add_wait(struct offcpu_sum *sum, struct offcpu_wait *wait)
{
	sum->total_ns += wait->ns;
	sum->count += OFFCPU_SUM_DRAWN && wait->flags & OFFCPU_DRAWN ? wait->count : 1;
	sum->longest_ns = max(sum->longest_ns, wait->length);
	sum->last_switch_in_ns = wait->switch_in_ns;
	if (wait->runq_ns != OFFCPU_NOT_KNOWN) {
		sum->runq_ns += wait->runq_ns;
		sum->woken += 1;
	}
	sum->lost |= wait->lost;
}

/* Begin a sum with a wait; false if the map is full. */
static __always_inline bool begin_sum(struct offcpu_wait *wait, struct offcpu_sum_key *key)
{
	struct offcpu_sum sum = {
		.stack = wait->stack, .caller = wait->caller, .cgroup = wait->cgroup,
		.object_id = wait->object_id, .pid = wait->pid,
		.state = wait->prev_state, .syscall = wait->syscall,
		.flags = wait->flags & SUM_FLAGS, .first_switch_out_ns = wait->switch_out_ns,
	};

	add_wait(&sum, wait);
	return !sums.update(key, &sum);
}

/* Add a wait to a sum, unless it is of another kind, whose hash is the same; false then. */
static __always_inline bool add_to_sum(struct offcpu_sum *sum, struct offcpu_wait *wait)
{
	if (sum->caller != wait->caller || (!wait->caller && sum->stack != wait->stack) ||
	    sum->cgroup != wait->cgroup || sum->object_id != wait->object_id ||
	    sum->state != wait->prev_state || sum->syscall != wait->syscall ||
	    sum->flags != (wait->flags & SUM_FLAGS))
		return false;
	add_wait(sum, wait);
	return true;
}

/* Sum a wait that could not be sent; false if the map is full. */
static __always_inline bool sum_instead(struct offcpu_wait *wait)
{
	struct offcpu_sum_key key = sum_key(wait);
	struct offcpu_sum *sum = sums.lookup(&key);

	return sum ? add_to_sum(sum, wait) : begin_sum(wait, &key);
}

/* Append a marker and frames from `first` to `nr` to a payload. Return the number of its words. */
static __always_inline u32 append_frames(struct offcpu_payload *to, u32 at, u64 marker,
					 const u64 *ips, u32 first, u32 nr)
{
	/* clang 15 and newer omit tests whose result they know, but the verifier does not. */
	barrier_var(at);
	if (first >= nr || nr > OFFCPU_FRAMES || at > SAMPLE_WORDS - 1 - OFFCPU_FRAMES)
		return at;
	nr -= first;
	barrier_var(nr);
	nr &= OFFCPU_FRAMES;
	to->words[at] = marker;
	bpf_probe_read_kernel(&to->words[at + 1], nr * sizeof(u64), &ips[first]);
	return at + 1 + nr;
}

/* Append the waker's callchain to a payload. Return the number of its words. */
static __always_inline u32 append_waker(const struct offcpu_run *run, u32 at)
{
	struct offcpu_waker_stack *waker = run->storage->waker;
	struct offcpu_payload *to = &run->to->sample;

	if (!OFFCPU_WAKER_STACKS || !run->wait->wakeup_ns)
		return at;
	at = append_frames(to, at, PERF_CONTEXT_KERNEL, waker->kernel, waker->first,
			   waker->nr_kernel);
	at = append_frames(to, at, PERF_CONTEXT_USER, waker->user.ips, 0, waker->user.nr);
	waker->nr_kernel = 0;
	waker->user.nr = 0;
	return at;
}

/* Append the facts about a TCP connection to a payload. Return the number of its words. */
static __always_inline u32 append_tcp(const struct offcpu_run *run, u32 at)
{
	u32 size = run->to->tcp_nr * sizeof(u32);

	barrier_var(at);
	if (!OFFCPU_OBJECTS || at > SAMPLE_WORDS - TCP_WORDS)
		return at;
	size &= TCP_WORDS * sizeof(u64) - 1;
	bpf_probe_read_kernel(&run->to->sample.words[at], size, &run->to->tcp);
	return at + size / sizeof(u64);
}

/* Write the sleeper's callchain to the sample in scratch. Return the number of its words. */
static __always_inline u32 append_callchain(const struct offcpu_run *run)
{
	struct offcpu_scratch *to = run->to;
	struct offcpu_wait *wait = run->wait;
	u64 cookie = 0;
	u32 at = 0, nr;

	if (run->ctl->kernel_stacks && !is_sum(wait)) {
		nr = walk_kernel_stack(run);
		wait->sample_lost |= !nr ? OFFCPU_LOST_KERNEL_STACK :
				     nr >= OFFCPU_FRAME_LIMIT ? OFFCPU_LOST_KERNEL_CUT : 0;
		at = append_frames(&to->sample, at, PERF_CONTEXT_KERNEL, to->kernel, to->first, nr);
	}
	if (run->ctl->defer_user && !is_kernel_thread(run->task)) {
		wait->sample_lost &= ~(OFFCPU_LOST_USER_STACK | OFFCPU_LOST_USER_CUT);
		/*
		 * The user part follows in a record of its own. The perf core puts the cookie of
		 * both into the sample's own callchain, where readers find it; here is its room.
		 */
		return append_frames(&to->sample, at, PERF_CONTEXT_USER_DEFERRED, &cookie, 0, 1);
	}
	return append_frames(&to->sample, at, PERF_CONTEXT_USER, run->user->ips, 0, run->user->nr);
}

/* Fill in the extension of a sample: what is known of the wait beyond upstream's words. */
static __always_inline void describe_wait(const struct offcpu_run *run,
					  struct offcpu_extension *to, u32 waker_nr)
{
	const struct offcpu_object *object = &run->to->object;
	const struct offcpu_task *storage = run->storage;
	const struct offcpu_wait *wait = run->wait;
	bool woken = wait->wakeup_ns;

	*to = (struct offcpu_extension) {
		.magic = OFFCPU_MAGIC, .version = OFFCPU_VERSION, .size = OFFCPU_EXTENSION_SIZE,
		.kind = is_sum(wait) ? OFFCPU_KIND_SUM :
			wait->flags & OFFCPU_BEGAN_BEFORE ? OFFCPU_KIND_BEGAN_BEFORE :
							    OFFCPU_KIND_WAIT,
		.waker_offset = waker_nr ? sizeof(*to) : 0, .waker_nr = waker_nr,
		.flags = wait->flags, .lost = wait->sample_lost,
		.state = wait->prev_state, .syscall = wait->syscall,
		.waker_pid = woken ? storage->waker_pid : OFFCPU_NO_ID,
		.waker_tid = woken ? storage->waker_tid : OFFCPU_NO_ID,
		.wakeup_ns = woken ? wait->wakeup_ns : OFFCPU_NOT_KNOWN,
		.switch_out_ns = wait->switch_out_ns,
		.count = wait->count, .longest_ns = wait->length, .runq_ns = wait->runq_ns,
		.caller = wait->copied, .asked_ns = OFFCPU_NOT_KNOWN,
		.object_id = wait->object_id, .holder_tid = OFFCPU_NO_ID,
	};
	if (!OFFCPU_OBJECTS || is_sum(wait))
		return;
	to->object_id = object->id;
	to->asked_ns = object->asked_ns;
	to->object_lost = object->lost;
	to->tcp_offset = sizeof(*to) + waker_nr * sizeof(u64);
	to->tcp_nr = run->to->tcp_nr;
	to->holder_tid = object->kind == OFFCPU_OBJECT_KERNEL_LOCK ? storage->blocker_tid :
								    storage->holder_tid;
}

/* Submit a sample to the event whose copies of the user stack have the size. */
static __always_inline long submit(void *ctx, u32 copy, struct offcpu_payload *sample, u64 size)
{
	return !OFFCPU_COPIES || copy == OFFCPU_COPY_FIRST ? events.perf_submit(ctx, sample, size) :
	       copy == OFFCPU_COPY_BARE ? events_bare.perf_submit(ctx, sample, size) :
	       copy == OFFCPU_COPY_QUARTER ? events_quarter.perf_submit(ctx, sample, size) :
	       copy == OFFCPU_COPY_DOUBLE ? events_double.perf_submit(ctx, sample, size) :
					    events_fourfold.perf_submit(ctx, sample, size);
}

/* Make a sample of a wait. Its length is not valid if it has no room. */
static __always_inline void make_sample(const struct offcpu_run *run)
{
	struct offcpu_payload *sample = &run->to->sample;
	struct offcpu_wait *wait = run->wait;
	u32 nr, end;

	wait->sample_lost = run->user->lost;
	run->to->end = SAMPLE_WORDS + 1;
	nr = append_callchain(run);
	if (nr > CHAIN_WORDS)
		return;
	end = append_waker(run, nr + 1 + OFFCPU_EXTENSION_WORDS);
	sample->pid = wait->pid;
	sample->tid = wait->tid;
	sample->offcpu_ns = wait->ns;
	sample->nr = nr;
	sample->words[nr] = wait->cgroup;
	describe_wait(run, (void *)&sample->words[nr + 1], end - nr - 1 - OFFCPU_EXTENSION_WORDS);
	run->to->end = append_tcp(run, end);
}

/* Begin a new window of the rate. After one with few samples the threshold falls again. */
static __always_inline void open_window(const struct offcpu_control *ctl,
					struct offcpu_rate *limit, u64 now)
{
	limit->window_ns = now;
	if (limit->sent < ctl->max_rate / 4) {
		limit->threshold_ns /= 2;
		if (limit->threshold_ns < RATE_FIRST_NS || limit->threshold_ns < ctl->threshold_ns)
			limit->threshold_ns = 0;
	}
	limit->sent = 0;
}

/* All samples of the window are used up: the threshold rises, once in a window. */
static __always_inline void raise_threshold(const struct offcpu_control *ctl,
					    struct offcpu_rate *limit)
{
	u64 from = limit->threshold_ns ? limit->threshold_ns : ctl->threshold_ns;

	if (limit->raised_in == limit->window_ns)
		return;
	limit->raised_in = limit->window_ns;
	limit->threshold_ns = from < RATE_FIRST_NS ? RATE_FIRST_NS : 2 * from;
	limit->raised += 1;
	limit->highest_ns = max(limit->highest_ns, limit->threshold_ns);
}

/*
 * Whether a wait over the user's threshold may be sent: max_rate of them in a window. CPUs do not
 * wait for each other here, so that each may send one too many. With OFFCPU_SAMPLING no sample may
 * be left out: the period follows the rate (period.h).
 */
static __always_inline bool may_send(const struct offcpu_control *ctl, struct offcpu_wait *wait)
{
	struct offcpu_rate *limit = OFFCPU_SAMPLING ? NULL : rate_of(ctl);

	if (wait->flags & OFFCPU_BEGAN_BEFORE || !limit)
		return true;
	if (wait->switch_in_ns - limit->window_ns >= ctl->window_ns)
		open_window(ctl, limit, wait->switch_in_ns);
	if (wait->ns >= limit->threshold_ns) {
		if (limit->sent < ctl->max_rate) {
			__sync_fetch_and_add(&limit->sent, 1);
			return true;
		}
		raise_threshold(ctl, limit);
	}
	count(OFFCPU_RATE_LIMITED, wait->ns);
	return false;
}

/* Have a wait sent with a copy of its stack as a sum, even if of one wait: it has no waker. */
static __always_inline void mark_first(struct offcpu_wait *wait)
{
	wait->first = true;
	wait->wakeup_ns = 0;
	wait->flags &= SUM_FLAGS;
}

/* Sum a wait; false if it is to be sent: the map is full, or the wait the first of its callers. */
static __always_inline bool sum_wait(const struct offcpu_run *run)
{
	struct offcpu_wait *wait = run->wait;
	struct offcpu_sum_key key;
	struct offcpu_sum *sum;

	wait->lost = OFFCPU_SUM_CALLERS ? run->user->lost : 0;
	if (OFFCPU_SUM_CALLERS)
		wait->caller = hash_callers(run);
	if (OFFCPU_SUM_STACKS && !wait->caller)
		keep_user_stack(run);
	key = sum_key(wait);
	sum = sums.lookup(&key);
	if (OFFCPU_SUM_CALLERS && !sum && wait->caller) {
		keep_user_stack(run);
		if (is_first(run->ctl, wait->caller)) {
			mark_first(wait);
			return false;
		}
	}
	if (sum ? add_to_sum(sum, wait) : begin_sum(wait, &key))
		return true;
	count(OFFCPU_SUM_MAP_FULL, wait->ns);
	return false;
}

enum { AT_ONE_PERIOD = 8, DOUBLINGS = 5 };	/* draws of a thread until its period doubles */

/*
 * Draw a short wait for its stack, or not: one for each period of the short waits of a thread. The
 * period is short at first, so that threads with few short waits have stacks, too.
 *
 * Sums of short waits have no stack. User space shares each among the stacks of the waits that were
 * drawn from it, by weight (collect/kernel_totals/drawn_stacks.py).
 */
static __always_inline void draw_stack(const struct offcpu_run *run)
{
	struct offcpu_wait *wait = run->wait;
	u32 doublings = min(run->storage->draws / AT_ONE_PERIOD, DOUBLINGS);
	u64 period = run->ctl->period_ns >> (DOUBLINGS - doublings);

	wait->drawn = fill_phase(&run->storage->phase, period, wait->length) * period;
}

/*
 * Sum the weight of a drawn wait, and the number of waits that it stands for, by its stack. Return
 * whether the wait is to be sent with a copy of the stack: then it is not in the sum that is to be
 * shared by these weights, and does not stand for itself.
 */
static __always_inline bool sum_drawn(const struct offcpu_run *run)
{
	struct offcpu_wait *wait = run->wait;
	bool first = wait->copied && wait->copy != OFFCPU_COPY_BARE;
	u32 flags = wait->flags;

	run->storage->draws += 1;
	wait->flags |= OFFCPU_DRAWN;
	wait->ns = wait->drawn;
	wait->count = max(wait->ns / max(wait->length, 1), 1);
	if (first) {
		wait->ns -= min(wait->ns, wait->length);
		wait->count -= 1;
	}
	wait->caller = wait->copied;
	keep_user_stack(run);	/* for those who do not unwind, too */
	if (!sum_instead(wait))
		count(OFFCPU_STACK_MAP_FULL, 0);
	wait->flags = flags;
	wait->ns = wait->length;
	wait->caller = wait->stack = 0;
	wait->count = 1;
	if (first)
		mark_first(wait);
	return first;
}

/* Send the sample of a wait; if that fails, sum it. */
static __always_inline void send_sample(const struct offcpu_run *run)
{
	u64 end = run->to->end;		/* not u32: clang would compare a copy */
	struct offcpu_wait *wait = run->wait;
	long error = -ENOSPC;

	barrier_var(end);
	if (end <= SAMPLE_WORDS)
		error = submit(run->ctx, wait->copy, &run->to->sample,
			       offsetof(struct offcpu_payload, words) + end * sizeof(u64));
	if (is_sum(wait))
		count(error ? OFFCPU_SNAPSHOTS_LOST : OFFCPU_SNAPSHOTS, wait->ns);
	else if (!error)
		count(OFFCPU_SAMPLES, wait->length);
	else
		count(error == -ENOSPC ? OFFCPU_RING_FULL : OFFCPU_OUTPUT_FAILED, wait->ns);
	if (error && ((!wait->sampled && !is_sum(wait)) || !sum_instead(wait)))
		count(OFFCPU_WAITS_LOST, wait->ns);
	if (OFFCPU_COPIES && !error && wait->copied && wait->copy != OFFCPU_COPY_BARE) {
		note_known(run->ctl, wait->copied, wait->copied);
		if (wait->hash)
			note_known(run->ctl, wait->hash, wait->copied);
	}
}

/* Account a completed wait: sum it or send it, and if one fails do the other. */
static __always_inline void account(struct offcpu_run *run)
{
	const struct offcpu_control *ctl = run->ctl;
	struct offcpu_wait *wait = run->wait;
	bool is_long = wait->ns >= ctl->threshold_ns || wait->flags & OFFCPU_BEGAN_BEFORE;

	if (!is_long && ctl->drop_short) {
		count(OFFCPU_DROPPED, wait->ns);
		return;
	}
	wait->sampled = is_long && may_send(ctl, wait);
	wait->lost = OFFCPU_LOST_USER_STACK;
	run->to = scratch.lookup(ONLY_KEY);
	if (!run->to)
		return;
	run->to->tcp_nr = 0;
	if (OFFCPU_OBJECTS && is_fault(wait)) {
		find_object(run, true, false, -1);
		wait->object_id = run->to->object.id;
	}
	if (OFFCPU_SUM_DRAWN && !wait->sampled)
		draw_stack(run);
	if (!wait->sampled && !wait->drawn && sum_wait(run))
		return;
	if (!WALK_AT_SWITCH_OUT) {
		run->user = run->to->user;
		run->user->nr = run->user->lost = 0;
		if (!ctl->defer_user || wait->drawn)
			take_user_stack(run->ctx, ctl, run->task, run->user, NULL, OFFCPU_COPIES);
	}
	if (OFFCPU_COPIES)
		plan_copy(run);
	if (OFFCPU_SUM_DRAWN && wait->drawn && !sum_drawn(run) && sum_wait(run))
		return;
	if (OFFCPU_OBJECTS && !is_sum(wait)) {
		if (!wait->object_id)
			find_object(run, false, OFFCPU_AT_EXIT, -1);
		read_tcp(run->to);
		count_unknown(run->to->object.lost, wait->ns);
	}
	make_sample(run);
	if (OFFCPU_PYTHON && pythons.lookup(&wait->pid))	/* the rest is offcpu_python() */
		python_program.call(run->ctx, 0);
	send_sample(run);
}

#if OFFCPU_PYTHON
/*
 * Send the Python functions of the on-CPU sample that the perf core writes after this. An NMI that
 * interrupts an update of codes_seen must not do the same: that takes locks that it may hold.
 */
static __always_inline void name_sample(void *ctx, const struct offcpu_control *ctl,
					struct task_struct *task)
{
	struct offcpu_wait wait = { .pid = pid_of(task) };
	struct offcpu_run run = { .ctx = ctx, .ctl = ctl, .task = task, .wait = &wait,
				  .storage = find_storage(task) };
	u32 second = 1;
	struct offcpu_walk *walk = walks.lookup(&second), *interrupted = walks.lookup(ONLY_KEY);
	struct offcpu_extension *to;
	u64 nr;

	if (!run.storage || !walk || !interrupted || interrupted->is_locked ||
	    !walk_known(&run, walk))
		return;
	/* A mask, since clang may compare one copy of a number and pass another one. */
	nr = at_most(walk->nr, OFFCPU_PYTHON_FRAMES - 1);
	if (!nr)
		return;
	walk->note.pid = wait.pid;
	walk->note.tid = tid_of(task);
	to = &walk->note.extension;
	to->magic = OFFCPU_MAGIC;
	to->version = OFFCPU_VERSION;
	to->size = OFFCPU_EXTENSION_SIZE;
	to->kind = OFFCPU_KIND_ON_CPU;
	to->python_offset = sizeof(*to);
	to->python_nr = nr;
	if (events_python.perf_submit(ctx, &walk->note, sizeof(walk->note) + nr * sizeof(u64)))
		count(OFFCPU_PYTHON_UNREADABLE, 0);
}
#endif
