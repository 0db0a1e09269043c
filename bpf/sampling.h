/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sampling of waits by their length: one sample for each period of waiting of a thread.
 *
 * Each thread has an accumulator, which begins at a random phase. A wait adds its length; when that
 * fills q periods, the wait becomes a sample of the weight q * period, and the rest stays for the
 * next one. So the expected weight of any set of waits is their time, however short they are, and a
 * wait of at least a period is always a sample. Waits without a sample cost no stack and no map.
 *
 * With control.max_rate the period changes. A phase is random among the phases of one period only:
 * kept for a longer one, a thread would have no sample for too long, kept for a shorter one, the
 * next wait would get the time of earlier ones. So each period begins with a phase of its own.
 *
 * Wake-ups are noted without their time: reading the clock would cost as much as all the rest of a
 * wake-up. The kernel itself measures how long a task waits for a CPU (CONFIG_SCHED_INFO), by the
 * clock of its run queue; the time of the wake-up is the end of the wait minus this delay.
 */
#ifndef OFFCPU_SAMPLING_H
#define OFFCPU_SAMPLING_H

#include "targets.h"

#if OFFCPU_SAMPLING
#define WOKEN 1				/* in storage->wakeup_ns: woken, at a time not noted */
#define RATIO_ONE 1024			/* of a new period to the one before */
#define RATIO_LIMIT 64
#define LONGEST_PERIOD_NS (1ULL << 40)	/* no product of adapt_period() overflows */

/* The clock of the run queue that a task is on: sched_clock() when the kernel last looked. */
static __always_inline u64 queue_clock(struct task_struct *task)
{
	void *cfs = FIELD(void *, task, TASK_CFS_RQ);
	void *rq = FIELD(void *, cfs, CFS_RQ_RQ);

	return FIELD(u64, rq, RQ_CLOCK);
}

/*
 * How long a task has waited for a CPU since it left one. The kernel adds the part on the present
 * run queue after sched_switch (sched_info_arrive(), kernel/sched/stats.h).
 */
static __always_inline u64 queued_for(const struct offcpu_task *storage, struct task_struct *task)
{
	u64 ns = FIELD(u64, task, TASK_RUN_DELAY) - storage->queued_ns;
	u64 since = FIELD(u64, task, TASK_LAST_QUEUED), clock;

	if (!since)
		return ns;
	clock = queue_clock(task);
	return clock > since ? ns + clock - since : ns;
}

/* Note, as a wait begins, what queued_for() and woken_at() count from. */
static __always_inline void note_clock(struct offcpu_task *storage, struct task_struct *task)
{
	storage->clock = queue_clock(task);
	storage->queued_ns = FIELD(u64, task, TASK_RUN_DELAY);
}

/* When a task that still waits for a CPU was woken; 0 if it was not. */
static __always_inline u64 woken_at(const struct offcpu_task *storage, struct task_struct *task)
{
	u64 since = FIELD(u64, task, TASK_LAST_QUEUED);

	if (storage->wakeup_ns != WOKEN)
		return storage->wakeup_ns;
	return storage->since_ns + (since > storage->clock ? since - storage->clock : 0);
}

static __always_inline struct offcpu_rate *rate_of(const struct offcpu_control *ctl)
{
	u32 zero = 0;

	return ctl->max_rate ? rate.lookup(&zero) : NULL;
}

/* The period: that of the user, or a longer one while there are too many samples. */
static __always_inline u64 period_of(const struct offcpu_control *ctl,
				     const struct offcpu_rate *limit)
{
	return limit && limit->threshold_ns > ctl->period_ns ? limit->threshold_ns : ctl->period_ns;
}

/*
 * Choose the period anew where a window is over, or its samples are used up. No sample is left out:
 * the others would not stand for it. Between 7 and 10 tenths of the samples that the time allows,
 * all stays; otherwise the number of samples seen chooses a period for 17 of 20.
 *
 * CPUs do not wait for each other. By the order of these loads and stores two of them that are here
 * at the same time choose the same, or one finds the new window.
 */
static __always_inline void adapt_period(const struct offcpu_control *ctl,
					 struct offcpu_rate *limit, u64 now)
{
	u64 from = *(volatile u64 *)&limit->threshold_ns;
	u64 sent = *(volatile u64 *)&limit->sent;
	u64 begin = *(volatile u64 *)&limit->window_ns;
	u64 passed = now > begin ? now - begin : 0, allowed, ratio;

	if (passed < ctl->window_ns && sent < ctl->max_rate)
		return;
	if (passed > 8 * ctl->window_ns)
		passed = 8 * ctl->window_ns;
	allowed = ctl->max_rate * passed / ctl->window_ns;
	*(volatile u64 *)&limit->window_ns = now;
	*(volatile u64 *)&limit->sent = 0;
	if (sent <= allowed && 10 * sent >= 7 * allowed)
		return;
	ratio = (sent + 1) * RATIO_ONE / (17 * allowed / 20 + 1);
	if (ratio < RATIO_ONE / RATIO_LIMIT)
		ratio = RATIO_ONE / RATIO_LIMIT;
	if (ratio > RATIO_ONE * RATIO_LIMIT)
		ratio = RATIO_ONE * RATIO_LIMIT;
	if (from < ctl->period_ns)
		from = ctl->period_ns;
	from = from * ratio / RATIO_ONE;
	if (from > LONGEST_PERIOD_NS)
		from = LONGEST_PERIOD_NS;
	*(volatile u64 *)&limit->threshold_ns = from > ctl->period_ns ? from : 0;
	if (ratio <= RATIO_ONE)
		return;
	limit->raised += 1;
	if (from > limit->highest_ns)
		limit->highest_ns = from;
}

/* A random number below another one. */
static __always_inline u64 random_below(u64 end)
{
	u64 random = bpf_get_prandom_u32();

	return random * (end >> 32) + (random * (u32)end >> 32);
}

/* Add a wait to the accumulator of its thread. Return whether it is a sample, with its weight. */
static __always_inline bool draw(const struct offcpu_control *ctl, struct offcpu_task *storage,
				 u64 now, u64 ns, struct offcpu_times *times)
{
	struct offcpu_rate *limit = rate_of(ctl);
	u64 period;

	if (limit)
		adapt_period(ctl, limit, now);
	period = period_of(ctl, limit);
	if (!period)
		return false;
	if (storage->period_ns != period) {
		storage->period_ns = period;
		storage->accumulated = random_below(period);
	}
	storage->accumulated += ns;
	if (storage->accumulated < period) /* most waits need no division */
		return false;
	times->periods = storage->accumulated / period;
	times->weight = times->periods * period;
	storage->accumulated -= times->weight;
	storage->flags |= OFFCPU_SAMPLED_WAIT;
	if (limit)
		__sync_fetch_and_add(&limit->sent, 1);
	return true;
}

/* Whether a wait that ends now would be a sample, or is the first one with this period. */
static __always_inline bool would_be_drawn(const struct offcpu_control *ctl,
					   const struct offcpu_task *storage)
{
	u64 blocked = bpf_ktime_get_ns() - storage->since_ns;
	u64 period = period_of(ctl, rate_of(ctl));

	return storage->period_ns != period || storage->accumulated + blocked >= period;
}
#else
static __always_inline void note_clock(struct offcpu_task *storage, struct task_struct *task)
{
}

static __always_inline u64 woken_at(const struct offcpu_task *storage, struct task_struct *task)
{
	return storage->wakeup_ns;
}
#endif

#endif /* OFFCPU_SAMPLING_H */
