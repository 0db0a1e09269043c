/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sampling of waits by their length: one sample for each period of waiting of a thread.
 *
 * Each thread has an accumulator, which begins at a random phase. A wait adds its length; when that
 * fills q periods, the wait becomes a sample of the weight q * period, and the rest stays for the
 * next one. So the expected weight of any set of waits is their time, however short they are, and a
 * wait of at least a period is always a sample. Waits without a sample cost no stack and no map.
 *
 * Who wakes a thread is looked up only if the wait is a sample by then, or nearly: if it is filled
 * up by a longer wait for a CPU, its waker is left out and counted.
 */
#ifndef OFFCPU_SAMPLING_H
#define OFFCPU_SAMPLING_H

#include "targets.h"

#if OFFCPU_SAMPLING
#define NEAR 8				/* part of a period that may be waiting for a CPU */

/* The period: that of the user, or a longer one while there are too many samples. */
static __always_inline u64 period_of(const struct offcpu_control *ctl)
{
	u32 zero = 0;
	struct offcpu_rate *limit;

	if (!ctl->max_rate)
		return ctl->period_ns;
	limit = rate.lookup(&zero);
	return limit && limit->threshold_ns > ctl->period_ns ? limit->threshold_ns : ctl->period_ns;
}

/* Add a wait to the accumulator of its thread. Return whether it is a sample, with its weight. */
static __always_inline bool draw(const struct offcpu_control *ctl, struct offcpu_task *storage,
				 u64 ns, struct offcpu_times *times)
{
	u64 period = period_of(ctl);

	if (!period)
		return false;
	/* One more than what was accumulated: 0 before the first wait. */
	if (!storage->accumulated)
		storage->accumulated = 1 + ((u64)bpf_get_prandom_u32() * period >> 32);
	storage->accumulated += ns;
	if (storage->accumulated <= period) /* most waits need no division */
		return false;
	times->periods = (storage->accumulated - 1) / period;
	times->weight = times->periods * period;
	storage->accumulated -= times->weight;
	storage->flags |= OFFCPU_SAMPLED_WAIT;
	return true;
}

/*
 * Whether a wait would be a sample if it ended `later` ns after its wake-up. Before its first wait
 * a thread has no phase; one that is woken before it leaves its CPU is not blocked at all.
 */
static __always_inline bool may_be_drawn(const struct offcpu_control *ctl,
					 const struct offcpu_task *storage, u64 later)
{
	u64 blocked = storage->wakeup_ns - storage->since_ns;

	if (storage->mode <= OFFCPU_PREEMPTED)
		blocked = 0;
	return !storage->accumulated || storage->accumulated + blocked + later > period_of(ctl);
}
#endif

#endif /* OFFCPU_SAMPLING_H */
