/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Loops that the verifier does not follow round by round.
 *
 * Of a bounded loop the verifier follows every round, and what comes after it once more for each
 * round that may be the last. Linux 6.9 has an instruction for loops, may_goto: it leaves the loop
 * when some eight million rounds are over (never here), so that the verifier need not prove an end.
 * It follows a round only while rounds differ in what matters for safety. So the number of the
 * first round must not be known either, which first_round() sees to.
 *
 *	for (i = first_round(ctl, 0); can_loop; i++) {
 *		barrier_var(i);
 *		if (i >= BOUND)
 *			break;
 *
 * Older kernels follow all rounds up to BOUND. Each costs 1 ns more with may_goto.
 */
#ifndef OFFCPU_LOOPS_H
#define OFFCPU_LOOPS_H

#include "off_cpu.h"

#if OFFCPU_MAY_GOTO
/*
 * The instruction by its bytes, which older versions of clang do not know by name: opcode,
 * registers, 16 bits for the way to `end`, 32 bits that are 0.
 */
#define can_loop                                                                                   \
	({                                                                                         \
		__label__ end, next;                                                               \
		bool again = true;                                                                 \
		asm volatile goto("1: .byte 0xe5; .byte 0;"                                        \
				  ".long ((%l[end] - 1b - 8) / 8) & 0xffff; .short 0" ::::end);    \
		goto next;                                                                         \
	end:                                                                                       \
		again = false;                                                                     \
	next:;                                                                                     \
		again;                                                                             \
	})
#else
#define can_loop true
#endif

static __always_inline u64 first_round(const struct offcpu_control *ctl, u64 first)
{
#if OFFCPU_MAY_GOTO
	return first + *(const volatile u64 *)&ctl->zero;
#else
	return first;
#endif
}

#endif /* OFFCPU_LOOPS_H */
