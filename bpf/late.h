/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Numbers that are not known when the programs are compiled: enum offcpu_late.
 *
 * The compiler loads a 64-bit number that stands for one, OFFCPU_LATE + its enumerator. The loader
 * (perf_offcpu/collect/bpf/object.py) replaces it in the instructions. So the verifier knows the
 * value, and what depends on it costs what it would with a constant of the compiler; branches that
 * it rules out are removed.
 */
#ifndef OFFCPU_LATE_H
#define OFFCPU_LATE_H

#include "off_cpu.h"

/* Volatile: in a register, not kept on the stack from an earlier use. */
#define late_value(which)                                                                          \
	({                                                                                         \
		u64 value;                                                                         \
		asm volatile("%0 = %1 ll" : "=r"(value) : "i"(OFFCPU_LATE + (which)));             \
		value;                                                                             \
	})

/* Whether an address is in code whose place is `place`, and its size the next enumerator. */
#define is_within(address, place) ((address) - late_value(place) < late_value((place) + 1))

#endif /* OFFCPU_LATE_H */
