/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sampling of waits by their length: one sample for each period of waiting of a thread.
 *
 * Each thread has an accumulator, which begins at a random phase. A wait adds its length; when that
 * fills q periods, the wait becomes a sample of the weight q * period, and the rest stays for the
 * next one. So the expected weight of any set of waits is their time, however short they are, and a
 * wait of at least a period is always a sample. Waits without a sample cost no stack and no map.
 */
#ifndef OFFCPU_SAMPLING_H
#define OFFCPU_SAMPLING_H

#include "targets.h"

#if OFFCPU_SAMPLING
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

/* Add a wait to the accumulator of its thread. Return how many periods that fills. */
static __always_inline u64 draw(struct offcpu_task *storage, u64 period, u64 ns)
{
	u64 number;

	if (!period)
		return 0;
	/* One more than what was accumulated: 0 before the first wait. */
	if (!storage->accumulated)
		storage->accumulated = 1 + ((u64)bpf_get_prandom_u32() * period >> 32);
	storage->accumulated += ns;
	number = (storage->accumulated - 1) / period;
	storage->accumulated -= number * period;
	return number;
}

/* Whether a wait would be a sample if it ended now. */
static __always_inline bool would_be_drawn(const struct offcpu_control *ctl,
					   struct offcpu_task *storage, u64 now)
{
	return storage->accumulated + (now - storage->since_ns) >= period_of(ctl);
}
#endif

#endif /* OFFCPU_SAMPLING_H */
