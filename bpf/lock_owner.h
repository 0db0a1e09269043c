/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who holds the lock for which a thread begins to wait, by the word in memory that names the owner.
 *
 *	FUTEX_LOCK_PI			the futex: its low 30 bits are the owner
 *	robust mutex			the same in the value that the thread waits to change
 *	pthread_mutex_t			waits at 0 with the value 2; owner at 8, users 12, kind 16
 *	pthread_rwlock_t		waits at 8 and 12 with the value 3, writer at 24
 *
 * (glibc, x86-64 and arm64: struct_mutex.h and struct_rwlock.h in sysdeps.) The layouts are those
 * of glibc, and other programs have other words there: readers believe an id only if it is one of
 * a thread of the same process at that time.
 */
#pragma once

#include "objects.h"

#if OFFCPU_LOCK_OWNERS
#define MUTEX_CONTENDED 2
#define RWLOCK_CONTENDED 3
#define MUTEX_KINDS 0x3ff
#define MOST_USERS 0x100000

/* The owner of a lock of glibc, from the words of memory that begin with the futex; 0 unknown. */
static __always_inline u32 owner_in(const u32 *words, u32 value)
{
	if (value == MUTEX_CONTENDED && words[0] == value && words[3] <= MOST_USERS &&
	    words[4] <= MUTEX_KINDS)
		return words[2];
	if (value != RWLOCK_CONTENDED || words[2])	/* padding, whichever of both it is */
		return 0;
	return words[3] ? words[1] ? 0 : words[3] : words[4];
}

/* Who holds the lock for which a task that leaves its CPU waits; OFFCPU_NO_ID unknown. */
static __always_inline u32 lock_owner(const struct offcpu_control *ctl, struct task_struct *task)
{
	struct offcpu_arguments args;
	u32 words[5] = {}, owner = 0, command, value;
	s32 syscall = syscall_of(task, 0);
	struct offcpu_call *call;
	void *regs, *pid;

	call = syscall < 0 ? NULL : call_of(syscall);
	if (!call || call->what != OFFCPU_CALL_FUTEX || is_exiting(task))
		return OFFCPU_NO_ID;
	/* Ids in memory are those of the program's pid namespace. */
	pid = FIELD(void *, task, TASK_THREAD_PID);
	if (FIELD(u32, pid, PID_LEVEL) != late_value(OFFCPU_PID_LEVEL))
		return OFFCPU_NO_ID;
	regs = (void *)bpf_task_pt_regs(task);
	if (is_compat(task, regs))
		return OFFCPU_NO_ID;
	read_arguments(regs, &args);
	if (bpf_probe_read_user(words, sizeof(words), (void *)args.words[0])) {
		count(OFFCPU_OBJECTS_UNREADABLE, 0);
		return OFFCPU_NO_ID;
	}
	command = args.words[1] & FUTEX_COMMAND;
	value = args.words[2];
	if (command == FUTEX_LOCK_PI || command == FUTEX_LOCK_PI2)
		owner = words[0] & FUTEX_TID_MASK;
	else if (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET)
		owner = value & FUTEX_WAITERS ? value & FUTEX_TID_MASK : owner_in(words, value);
	return owner ? owner : OFFCPU_NO_ID;
}
#endif
