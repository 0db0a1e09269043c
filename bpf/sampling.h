/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sampling of waits by their length: one sample for each period of waiting of a thread.
 * Each thread has an accumulator, which begins at a random phase. A wait adds its length; when that
 * fills q periods, the wait becomes a sample of the weight q * period, and the rest stays for the
 * next one. So the expected weight of any set of waits is their time, however short they are, and a
 * wait of at least a period is always a sample. Waits without a sample cost no stack and no map.
 *
 * Wake-ups are noted without their time: reading the clock would cost as much as all the rest of a
 * wake-up. The kernel itself measures how long a task waits for a CPU (CONFIG_SCHED_INFO), by the
 * clock of its run queue; the time of the wake-up is the end of the wait minus this delay.
 */
#pragma once

#include "targets.h"

#define SAME_PACE_NS 10000000		/* 500 ppm, the most that NTP slews, of it are 5 us */
#define WOKEN 1				/* in storage->wakeup_ns: woken, at a time not noted */

/* The clock of the run queue that a task is on: sched_clock() when the kernel last looked. */
static __always_inline u64 queue_clock(struct task_struct *task)
{
	return FIELD(u64, run_queue_of(task), RQ_CLOCK);
}

/*
 * How long a task has waited for a CPU since it left one. The kernel adds the part on the present
 * run queue after sched_switch (sched_info_arrive(), kernel/sched/stats.h).
 * The queue's clock stands still between a wake-up and the switch that follows, 5 us (the kernel
 * calls rq_clock_skip_update()). So the clock of this program says how long the task was queued, in
 * waits for which both clocks go alike.
 */
static __always_inline u64 queued_for(const struct offcpu_task *storage, struct task_struct *task,
				      u64 pause)
{
	u64 ns = FIELD(u64, task, TASK_RUN_DELAY) - storage->queued_ns;
	u64 since = FIELD(u64, task, TASK_LAST_QUEUED), clock;

	if (!since)
		return ns;
	if (pause < SAME_PACE_NS && since - storage->clock < pause)
		return ns + pause - (since - storage->clock);
	clock = queue_clock(task);
	return clock > since ? ns + clock - since : ns;
}

/* Add a wait to the accumulator of its thread. Return whether it is a sample, with its weight. */
static __always_inline bool draw(const struct offcpu_run *run)
{
	struct offcpu_task *storage = run->storage;
	struct offcpu_wait *wait = run->wait;

	wait->count = draw_periods(run->ctl, rate_of(run->ctl), &storage->phase,
				   wait->switch_in_ns, wait->length);
	wait->ns = wait->count * storage->phase.period_ns;
	if (wait->count)
		storage->flags |= OFFCPU_SAMPLED_WAIT;
	return wait->count;
}

/* Whether a wait that ends now would be a sample, or is the first one with this period. */
static __always_inline bool would_be_drawn(const struct offcpu_control *ctl,
					   const struct offcpu_task *storage)
{
	u64 blocked = bpf_ktime_get_ns() - storage->since_ns;
	u64 period = period_of(ctl, rate_of(ctl));

	return storage->phase.period_ns != period || storage->phase.accumulated + blocked >= period;
}

/* Note, as a wait begins, what queued_for() and woken_at() count from. */
static __always_inline void note_clock(struct offcpu_task *storage, struct task_struct *task)
{
	if (!OFFCPU_SAMPLING)
		return;
	storage->clock = queue_clock(task);
	storage->queued_ns = FIELD(u64, task, TASK_RUN_DELAY);
}

/* When a task that still waits for a CPU was woken; 0 if it was not. */
static __always_inline u64 woken_at(const struct offcpu_task *storage, struct task_struct *task)
{
	u64 since;

	if (!OFFCPU_SAMPLING || storage->wakeup_ns != WOKEN)
		return storage->wakeup_ns;
	since = FIELD(u64, task, TASK_LAST_QUEUED);
	return storage->since_ns + (since > storage->clock ? since - storage->clock : 0);
}
