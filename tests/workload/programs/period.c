/* SPDX-License-Identifier: Apache-2.0 */
/* Draw samples by bpf/period.h from waits that are given. */
#include <linux/types.h>
#include <linux/stddef.h>
#define __always_inline inline __attribute__((always_inline))
static u64 seed;
static u32 bpf_get_prandom_u32(void)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return seed >> 32;
}
#include "period.h"
void draw_all(u64 period_ns, u64 max_rate, u64 window_ns, u64 random, u64 number, const u64 *end_ns,
              const u64 *thread, const u64 *length_ns, const u64 *paused_ns, struct offcpu_phase *phases,
              u64 *weight_ns)
{
    struct offcpu_control ctl = {.period_ns = period_ns, .max_rate = max_rate, .window_ns = window_ns};
    struct offcpu_rate limit = {};
    seed = random;
    for (u64 at = 0; at < number; at++) {
        struct offcpu_phase *phase = &phases[thread[at]];
        ctl.paused_ns = paused_ns[at];
        u64 periods = draw_periods(&ctl, max_rate ? &limit : 0, phase, end_ns[at], length_ns[at]);
        weight_ns[at] = periods * phase->period_ns;
    }
}
