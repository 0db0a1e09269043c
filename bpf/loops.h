/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Keep the verifier's work small: users wait for it at each start.
 * Of a bounded loop the verifier follows every round, and what comes after the loop once more for
 * each round that may be the last. Linux 6.9 has an instruction for loops, may_goto: it leaves the
 * loop after some eight million rounds (never here), so that the verifier need not prove an end. A
 * round that begins as an earlier one did, apart from values that do not matter for safety, is not
 * followed again. For that the number of the first round must not be known. for_each_round() does
 * all this; older kernels follow all rounds up to its bound.
 *
 * Code after branches is followed once more for each value that they leave known, such as a mode.
 * unknown() joins these paths.
 *
 * Numbers that are not known when the programs are compiled are late values, enum offcpu_late. The
 * compiler loads a 64-bit number that stands for one, OFFCPU_LATE + its enumerator. The loader
 * (perf_offcpu/collect/bpf/object.py) replaces it in the instructions. So the verifier knows the
 * value, and what depends on it costs what it would with a constant of the compiler; branches that
 * it rules out are removed.
 */
#pragma once

#include "off_cpu.h"

/* Hide from clang what a variable holds, so that it leaves bounds as the verifier needs them. */
#define barrier_var(var) asm volatile("" : "+r"(var))
/* Have clang read memory again, of which the verifier knows less than of registers. */
#define barrier() asm volatile("" ::: "memory")

#if OFFCPU_MAY_GOTO
/*
 * The instruction by its bytes, which older versions of clang do not know by name: opcode,
 * registers, 16 bits for the way to `end`, 32 bits that are 0.
 */
#define can_loop                                                                                   \
	({                                                                                         \
		__label__ end;                                                                     \
		bool again = false;                                                                \
		asm volatile goto("1: .byte 0xe5; .byte 0;"                                        \
				  ".long ((%l[end] - 1b - 8) / 8) & 0xffff; .short 0" ::::end);    \
		again = true;                                                                      \
	end:;                                                                                      \
		again;                                                                             \
	})
#define end_round(i)
#else
#define can_loop true
/*
 * A jump to the next instruction: Linux 6.1 allows a loop to go back by a jump only, but clang may
 * place the end of a round right before the begin of the next one.
 */
#define end_round(i) asm volatile(".byte 5; .byte 0; .short 0; .long 0" : "+r"(i))
#endif

/* Return a value, of which the verifier then knows nothing. User space leaves ctl->zero alone. */
static __always_inline u64 unknown(const struct offcpu_control *ctl, u64 value)
{
	value += *(const volatile u64 *)&ctl->zero;
	barrier_var(value);
	return value;
}

/* All bits set if the top bit is, else 0; clang makes no branch of it. */
static __always_inline u64 sign_of(u64 word)
{
	word = (s64)word >> 63;
	barrier_var(word);
	return word;
}

/* The number of the first round of a loop. */
#define first_round(ctl, first) (OFFCPU_MAY_GOTO ? unknown(ctl, first) : (first))

/* A short loop over i from 0 on, without a loop in the instructions. */
#define for_unrolled(i, bound) _Pragma("clang loop unroll(full)") for (i = 0; i < (bound); i++)

/* A loop over i, a u64, from `first` up to a bound, a constant. */
#define for_each_round(ctl, i, first, bound)                                                       \
	_Pragma("clang loop unroll(disable)") for (i = first_round(ctl, first); can_loop;          \
	     ({ i++; end_round(i); }))                                                             \
		if (({ barrier_var(i); i >= (bound); }))                                           \
			break;                                                                     \
		else

/* Volatile: in a register, not kept on the stack from an earlier use. */
#define late_value(which)                                                                          \
	({                                                                                         \
		u64 value;                                                                         \
		asm volatile("%0 = %1 ll" : "=r"(value) : "i"(OFFCPU_LATE + (which)));             \
		value;                                                                             \
	})

/* All bits set if an address is in code at `place`; its size is the next enumerator. No branch. */
#define is_within(address, place)                                                                  \
	({                                                                                         \
		u64 far = (address) - late_value(place);                                           \
		~sign_of(far) & sign_of(far - late_value((place) + 1));                            \
	})
