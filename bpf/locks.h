/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Locks of programs: who holds the one for which a thread begins to wait, by a word in memory.
 *
 *	FUTEX_LOCK_PI			the futex: its low 30 bits are the owner
 *	robust mutex			the same in the value that the thread waits to change
 *	pthread_mutex_t			waits at 0 with the value 2; owner at 8, users 12, kind 16
 *	pthread_rwlock_t		waits at 8 and 12 with the value 3, writer at 24
 * (glibc, x86-64 and arm64: struct_mutex.h and struct_rwlock.h in sysdeps.) The layouts are those
 * of glibc, and other programs have other words there: readers believe an id only if it is one of
 * a thread of the same process at that time.
 *
 * Locks inside the kernel: which one a task waits for, and who holds it.
 *
 * task->blocker (CONFIG_DETECT_HUNG_TASK_BLOCKER; mutexes since Linux 6.15, semaphores 6.16,
 * rw_semaphores 6.17, these in state D only) is the address of the lock, with its type in the two
 * lowest bits. The task sets it before it sleeps and clears it when it runs on, so it is read at
 * switch-out, together with the owner: at the end of the wait the lock has another one.
 *
 * A wait for an rw_semaphore that a signal may end (state 0x102) sets no blocker. Most such waits
 * are for the mmap_lock: one of the last waiters in its list (without head in Linux 7) is the task.
 */
#pragma once

#include "descriptors.h"

enum { MUTEX_CONTENDED = 2, RWLOCK_CONTENDED = 3, MUTEX_KINDS = 0x3ff, MOST_USERS = 0x100000 };
#define LOCK_TYPE 3ULL			/* bits of task->blocker */
#define OWNER_FLAGS 7ULL		/* bits of mutex->owner and rw_semaphore->owner */
#define READERS_OWN 1ULL		/* readers hold it: the owner is the last that came */
#define LAST_WAITERS 4			/* of a list, that are looked at */

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
static __always_inline u32 lock_owner(struct task_struct *task)
{
	struct offcpu_arguments args;
	u32 words[5] = {}, owner = 0, command, value;
	struct offcpu_call *call = call_of(syscall_of(task, 0));
	void *pid = POINTER(task, TASK_THREAD_PID);

	/* Ids in memory are those of the program's pid namespace. */
	if (!call || call->what != OFFCPU_CALL_FUTEX || is_exiting(task) ||
	    FIELD(u32, pid, PID_LEVEL) != late_value(OFFCPU_PID_LEVEL) ||
	    !read_arguments(task, &args))
		return OFFCPU_NO_ID;
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

/* The mmap_lock of a task, in the form of task->blocker, if the task has queued for it; else 0. */
static __always_inline u64 own_mmap_lock(struct task_struct *task)
{
	u64 mm, head, last, i;		/* numbers, no pointers, to the verifier */

	if (!TASK_MM || !RWSEM_WAITER_TASK)
		return 0;
	mm = kernel_word(NULL, (u64)task + TASK_MM);
	head = MM_MMAP_FIRST ? kernel_word(NULL, mm + MM_MMAP_FIRST) : mm + MM_MMAP_WAITERS;
	last = kernel_word(NULL, head + LIST_HEAD_PREV);
	if (!last)
		return 0;
	for_unrolled(i, LAST_WAITERS) {
		if (kernel_word(NULL, last + RWSEM_WAITER_TASK) == (u64)task)
			return (mm + MM_MMAP_LOCK) |
			       (kernel_bytes(NULL, last + RWSEM_WAITER_TYPE, sizeof(u32)) ?
				OFFCPU_LOCK_READ : OFFCPU_LOCK_WRITE);
		if (last == head)
			return 0;
		/* struct rwsem_waiter begins with its place in the list. */
		last = kernel_word(NULL, last + LIST_HEAD_PREV);
	}
	return 0;
}

/* Note the lock of the kernel for which a task begins to wait, and its owner. */
static __always_inline void note_kernel_lock(struct offcpu_task *storage, struct task_struct *task)
{
	u64 blocker, lock, owner;
	u32 type, tid = 0;

	if (!OFFCPU_OBJECTS)
		return;
	blocker = TASK_BLOCKER ? FIELD(u64, task, TASK_BLOCKER) : 0;
	if (!blocker && storage->prev_state & TASK_UNINTERRUPTIBLE)
		blocker = own_mmap_lock(task);
	storage->blocker = blocker;
	if (!blocker)
		return;
	type = blocker & LOCK_TYPE;
	lock = (blocker & ~LOCK_TYPE) + (type == OFFCPU_LOCK_MUTEX ? MUTEX_OWNER :
		type == OFFCPU_LOCK_SEMAPHORE ? SEMAPHORE_LAST_HOLDER : RW_SEMAPHORE_OWNER);
	owner = kernel_word(NULL, lock);
	if (!(type >= OFFCPU_LOCK_READ && owner & READERS_OWN) && owner & ~OWNER_FLAGS)
		tid = kernel_bytes(NULL, (owner & ~OWNER_FLAGS) + TASK_PID, sizeof(tid));
	storage->blocker_tid = tid ? tid : OFFCPU_NO_ID;
}

/*
 * Find out what a lock protects, if it is one of those of a descriptor. The result goes to memory:
 * the verifier would follow what comes next for each value.
 */
static __always_inline void find_role(struct offcpu_object *to, struct task_struct *task, s32 fd)
{
	u64 file = file_of(to, task, fd), inode, super, pipe;

	inode = file ? kernel_word(to, file + FILE_INODE) : 0;
	if (!inode)
		return;
	super = kernel_word(to, inode + INODE_SB);
	pipe = kernel_word(to, file + FILE_PRIVATE_DATA);
	to->protocol = to->address == inode + INODE_RWSEM ? OFFCPU_LOCK_INODE :
		       to->address == inode + INODE_INVALIDATE_LOCK ? OFFCPU_LOCK_MAPPING :
		       to->address == super + SUPER_UMOUNT ? OFFCPU_LOCK_SUPER :
		       to->address == super + SUPER_RENAME_MUTEX ? OFFCPU_LOCK_RENAME :
		       to->address == pipe + PIPE_MUTEX ? OFFCPU_LOCK_PIPE : OFFCPU_LOCK_UNKNOWN;
	if (*(volatile u16 *)&to->protocol == OFFCPU_LOCK_UNKNOWN)
		return;
	to->inode = kernel_word(to, inode + INODE_INO);
	to->where = file;
	to->super = super;
}

/* Describe the lock of the kernel that a wait was for. */
static __always_inline void describe_lock(const struct offcpu_run *run, struct offcpu_object *to)
{
	const struct offcpu_wait *wait = run->wait;
	struct offcpu_call *call = call_of(wait->syscall);
	struct offcpu_arguments args;

	to->kind = OFFCPU_OBJECT_KERNEL_LOCK;
	to->address = wait->blocker & ~LOCK_TYPE;
	to->number = wait->blocker & LOCK_TYPE;
	if (TASK_MM && to->address == (u64)POINTER(run->task, TASK_MM) + MM_MMAP_LOCK)
		to->protocol = OFFCPU_LOCK_MMAP;
	else if (call && call->what <= OFFCPU_CALL_SEND_FILE && call->what &&
		 read_arguments(run->task, &args))
		find_role(to, run->task, args.words[0]);
	identify(to, to->address);
}
