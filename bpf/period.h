/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The period of sampling, which a limit of the rate changes, and the phase in which a thread is.
 * A phase is random among the phases of one period only: kept for a longer one, a thread would have
 * no sample for too long; kept for a shorter one, the next wait would get the time of earlier ones.
 * So each period begins with a phase of its own.
 *
 * tests/unit/collect/bpf/test_period.py compiles this file without BPF.
 */
#pragma once

#include "off_cpu.h"

enum { RATIO_LIMIT = 64, RATIO_ONE = 1024 };	/* of a new period to the one before */
#define LONGEST_PERIOD_NS (1ULL << 40)	/* no product of adapt_period() overflows */

#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))

/* What a thread has waited since its last sample. */
struct offcpu_phase {
	u64 period_ns;			/* to which this belongs, 0 before the first wait */
	u64 accumulated;		/* ns, from a random begin on; below the period */
};

/* The period: that of the user, or a longer one while there are too many samples. */
static __always_inline u64 period_of(const struct offcpu_control *ctl, struct offcpu_rate *limit)
{
	return limit && limit->threshold_ns > ctl->period_ns ? limit->threshold_ns : ctl->period_ns;
}

/*
 * Choose a new period at the end of a window, or when its samples are used up. A window allows
 * max_rate samples in window_ns. The period stays if the samples are 70 to 100 % of the number that
 * is allowed by now; otherwise the new one aims at 85 %. No sample is left out, because the other
 * samples do not stand for its time.
 *
 * CPUs do not wait for each other. By the order of these loads and stores, two CPUs that are here
 * at the same time choose the same period, or one finds the new window. If a window begins between
 * two loads of another CPU, this CPU may raise the period too far, for one window.
 */
static __always_inline void adapt_period(const struct offcpu_control *ctl,
					 struct offcpu_rate *limit, u64 now)
{
	u64 from = *(volatile u64 *)&limit->threshold_ns;
	u64 sent = *(volatile u64 *)&limit->sent;
	u64 begin = *(volatile u64 *)&limit->window_ns;
	u64 passed, allowed, ratio;

	now -= ctl->paused_ns; /* in a pause there are no samples, whatever the period */
	passed = now > begin ? now - begin : 0;
	if (passed < ctl->window_ns && sent < ctl->max_rate)
		return;
	passed = min(passed, 8 * ctl->window_ns);
	allowed = ctl->max_rate * passed / ctl->window_ns;
	*(volatile u64 *)&limit->window_ns = now;
	*(volatile u64 *)&limit->sent = 0;
	if (sent <= allowed && 10 * sent >= 7 * allowed)
		return;
	ratio = (sent + 1) * RATIO_ONE / (17 * allowed / 20 + 1);
	ratio = max(ratio, RATIO_ONE / RATIO_LIMIT);
	ratio = min(ratio, RATIO_ONE * RATIO_LIMIT);
	from = max(from, ctl->period_ns) * ratio / RATIO_ONE;
	from = min(from, LONGEST_PERIOD_NS);
	*(volatile u64 *)&limit->threshold_ns = from > ctl->period_ns ? from : 0;
	if (ratio <= RATIO_ONE)
		return;
	limit->raised += 1;
	limit->highest_ns = max(from, limit->highest_ns);
}

static __always_inline u64 random_below(u64 end)
{
	u64 random = bpf_get_prandom_u32();

	return random * (end >> 32) + (random * (u32)end >> 32);
}

/* Add a wait to the phase of its thread. Return how many periods it fills. */
static __always_inline u64 fill_phase(struct offcpu_phase *phase, u64 period, u64 ns)
{
	u64 periods;

	if (phase->period_ns != period) {
		phase->period_ns = period;
		phase->accumulated = random_below(period);
	}
	phase->accumulated += ns;
	if (phase->accumulated < period) /* most waits need no division */
		return 0;
	periods = phase->accumulated / period;
	phase->accumulated -= periods * period;
	return periods;
}

/* Return the same for a sample; 0 if the wait is no sample. */
static __always_inline u64 draw_periods(const struct offcpu_control *ctl, struct offcpu_rate *limit,
					struct offcpu_phase *phase, u64 now, u64 ns)
{
	u64 period, periods;

	if (limit)
		adapt_period(ctl, limit, now);
	period = period_of(ctl, limit);
	if (!period)
		return 0;
	periods = fill_phase(phase, period, ns);
	if (limit && periods)
		__sync_fetch_and_add(&limit->sent, 1);
	return periods;
}
