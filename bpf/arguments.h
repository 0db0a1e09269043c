/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The arguments of the system call in which a task waits, and after which time it ends by itself.
 * They are in the registers with which the thread entered the kernel. The map `calls` says what
 * each system call has: a descriptor, the address of a futex, a pid.
 */
#pragma once

#include "stacks.h"

BPF_TABLE("array", u32, struct offcpu_call, calls, OFFCPU_SYSCALL_NUMBERS);

/* include/uapi/linux/futex.h */
enum { FUTEX_WAIT = 0, FUTEX_LOCK_PI = 6, FUTEX_WAIT_BITSET = 9, FUTEX_WAIT_REQUEUE_PI = 11,
       FUTEX_LOCK_PI2 = 13, FUTEX_COMMAND = 0x7f, FUTEX_PRIVATE = 128, FUTEX_CLOCK_REALTIME = 256,
       FUTEX_TID_MASK = 0x3fffffff };
#define FUTEX_WAITERS 0x80000000
/* include/uapi/linux/time.h, wait.h */
enum { CLOCK_MONOTONIC = 1, TIMER_ABSTIME = 1, P_PID = 1, P_PIDFD = 3 };

#define NS_PER_MS 1000000ULL
#define NS_PER_S 1000000000ULL

struct offcpu_arguments {
	u64 words[4];
	u64 sp;
};

/* Read the registers of a task in a system call; false if it is one of a 32-bit program. */
static __always_inline bool read_arguments(struct task_struct *task, struct offcpu_arguments *args)
{
	void *regs = (void *)bpf_task_pt_regs(task);

	if (is_compat(task, regs))
		return false;
	args->words[0] = FIELD(u64, regs, REGS_ARG_0);
	args->words[1] = FIELD(u64, regs, REGS_ARG_1);
	args->words[2] = FIELD(u64, regs, REGS_ARG_2);
	args->words[3] = FIELD(u64, regs, REGS_ARG_3);
	args->sp = FIELD(u64, regs, REGS_SP);
	return true;
}

/* The description of a system call; NULL if it names no object, or is OFFCPU_SYSCALL_*. */
static __always_inline struct offcpu_call *call_of(s32 syscall)
{
	u32 number = syscall;
	struct offcpu_call *call = calls.lookup(&number);

	return call && (call->what || call->timeout) ? call : NULL;
}

/* After which time the system call was to end by itself, ns; or OFFCPU_NOT_KNOWN. */
static __always_inline u64 asked_of(struct offcpu_object *to, u32 timeout,
				    const struct offcpu_arguments *args, u64 begin)
{
	u64 word = timeout == OFFCPU_TIMEOUT_SPEC_0 ? args->words[0] :
		   timeout == OFFCPU_TIMEOUT_MS_2 || timeout == OFFCPU_TIMEOUT_SPEC_2 ||
		   timeout == OFFCPU_TIMEOUT_CLOCK ? args->words[2] : args->words[3];
	u64 spec[2] = {};
	bool is_span, is_monotonic;

	if (timeout == OFFCPU_TIMEOUT_MS_2 || timeout == OFFCPU_TIMEOUT_MS_3)
		return (s32)word > 0 ? (u32)word * NS_PER_MS : OFFCPU_NOT_KNOWN;
	if (!to->in_sleeper || !word || bpf_probe_read_user(spec, sizeof(spec), (void *)word))
		return OFFCPU_NOT_KNOWN;
	word = spec[0] * NS_PER_S + spec[1];
	if (timeout == OFFCPU_TIMEOUT_CLOCK) {
		is_span = !(args->words[1] & TIMER_ABSTIME);
		is_monotonic = args->words[0] == CLOCK_MONOTONIC;
	} else {
		is_span = timeout != OFFCPU_TIMEOUT_FUTEX ||
			  (args->words[1] & FUTEX_COMMAND) == FUTEX_WAIT;
		is_monotonic = !(args->words[1] & FUTEX_CLOCK_REALTIME);
	}
	if (is_span)
		return word;
	/* The time from the begin of the wait to a moment. */
	return !is_monotonic ? OFFCPU_NOT_KNOWN : word > begin ? word - begin : 0;
}

static __always_inline bool waits_for_futex(u64 operation)
{
	u32 command = operation & FUTEX_COMMAND;

	return command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET || command == FUTEX_LOCK_PI ||
	       command == FUTEX_LOCK_PI2 || command == FUTEX_WAIT_REQUEUE_PI;
}
