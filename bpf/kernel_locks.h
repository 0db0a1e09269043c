/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Locks inside the kernel: which one a task waits for, and who holds it.
 *
 * task->blocker (CONFIG_DETECT_HUNG_TASK_BLOCKER; mutexes since Linux 6.15, semaphores 6.16,
 * rw_semaphores 6.17, these in state D only) is the address of the lock, with its type in the two
 * lowest bits. The task sets it before it sleeps and clears it when it runs on, so it is read at
 * switch-out, together with the owner: at the end of the wait the lock has another one.
 *
 * A wait for an rw_semaphore that a signal may end (state 0x102) sets no blocker. Most such waits
 * are for the mmap_lock: then one of the last waiters in its list is this task.
 */
#pragma once

#include "descriptors.h"

#define LOCK_TYPE 3ULL			/* bits of task->blocker */
#define OWNER_FLAGS 7ULL		/* bits of mutex->owner and rw_semaphore->owner */
#define READERS_OWN 1ULL		/* readers hold it: the owner is the last that came */
#define LAST_WAITERS 4			/* of a list, that are looked at */

/* The mmap_lock of a task, in the form of task->blocker, if the task has queued for it; else 0. */
static __always_inline u64 own_mmap_lock(struct offcpu_task *storage, struct task_struct *task)
{
	void *mm = TASK_MM && RWSEM_WAITER_TASK ? FIELD(void *, task, TASK_MM) : NULL;
	u64 address, last, waiter, i;
	u32 reads = 0;

	if (!mm)
		return 0;
	address = via_memory(storage, (u64)mm);	/* a number, no pointer, to the verifier */
	last = FIELD(u64, mm, MM_MMAP_WAITERS + LIST_HEAD_PREV);
#pragma clang loop unroll(full)
	for (i = 0; i < LAST_WAITERS; i++) {
		if (last == address + MM_MMAP_WAITERS)
			return 0;
		waiter = 0;
		bpf_probe_read_kernel(&waiter, sizeof(waiter), (void *)(last + RWSEM_WAITER_TASK));
		if (waiter == (u64)task) {
			bpf_probe_read_kernel(&reads, sizeof(reads),
					      (void *)(last + RWSEM_WAITER_TYPE));
			return (address + MM_MMAP_LOCK) |
			       (reads ? OFFCPU_LOCK_READ : OFFCPU_LOCK_WRITE);
		}
		/* struct rwsem_waiter begins with its place in the list. */
		if (bpf_probe_read_kernel(&last, sizeof(last), (void *)(last + LIST_HEAD_PREV)))
			return 0;
	}
	return 0;
}

/* Note the lock of the kernel for which a task begins to wait, and its owner. */
static __always_inline void note_kernel_lock(struct offcpu_task *storage, struct task_struct *task)
{
#if OFFCPU_OBJECTS
	u64 blocker = TASK_BLOCKER ? FIELD(u64, task, TASK_BLOCKER) : 0, lock, owner = 0;
	u32 type, tid = 0;

	if (!blocker && storage->prev_state & TASK_UNINTERRUPTIBLE)
		blocker = own_mmap_lock(storage, task);
	storage->blocker = blocker;
	if (!blocker)
		return;
	type = blocker & LOCK_TYPE;
	lock = (blocker & ~LOCK_TYPE) + (type == OFFCPU_LOCK_MUTEX ? MUTEX_OWNER :
		type == OFFCPU_LOCK_SEMAPHORE ? SEMAPHORE_LAST_HOLDER : RW_SEMAPHORE_OWNER);
	bpf_probe_read_kernel(&owner, sizeof(owner), (void *)lock);
	if (!(type >= OFFCPU_LOCK_READ && owner & READERS_OWN) && owner & ~OWNER_FLAGS)
		bpf_probe_read_kernel(&tid, sizeof(tid),
				      (void *)((owner & ~OWNER_FLAGS) + TASK_PID));
	storage->blocker_tid = tid ? tid : OFFCPU_NO_ID;
#endif
}

/* The lock of the kernel for which a task waited; 0 none. */
static __always_inline u64 blocker_of(struct offcpu_task *storage)
{
#if OFFCPU_OBJECTS
	return storage->blocker;
#else
	return 0;
#endif
}

/*
 * Find out what a lock protects, if it is one of those of a descriptor. The result goes to memory:
 * the verifier would follow what comes next for each value.
 */
static __always_inline void find_role(struct offcpu_object *to, struct task_struct *task, s32 fd)
{
	u64 file = file_of(to, task, fd), inode, super;

	inode = file ? kernel_word(to, file + FILE_INODE, sizeof(u64)) : 0;
	if (!inode)
		return;
	super = kernel_word(to, inode + INODE_SB, sizeof(u64));
	to->inode = kernel_word(to, inode + INODE_INO, sizeof(u64));
	to->where = file;
	to->super = super;
	if (to->address == kernel_word(to, file + FILE_PRIVATE_DATA, sizeof(u64)) + PIPE_MUTEX)
		to->protocol = OFFCPU_LOCK_PIPE;
	if (to->address == super + SUPER_RENAME_MUTEX)
		to->protocol = OFFCPU_LOCK_RENAME;
	if (to->address == super + SUPER_UMOUNT)
		to->protocol = OFFCPU_LOCK_SUPER;
	if (to->address == inode + INODE_INVALIDATE_LOCK)
		to->protocol = OFFCPU_LOCK_MAPPING;
	if (to->address == inode + INODE_RWSEM)
		to->protocol = OFFCPU_LOCK_INODE;
	if (*(volatile u16 *)&to->protocol == OFFCPU_LOCK_UNKNOWN)
		to->inode = to->where = to->super = 0;
}

/* Describe the lock of the kernel that a wait was for. */
static __always_inline void describe_kernel_lock(struct offcpu_object *to,
						 const struct offcpu_wait *wait)
{
	u64 mm = FIELD(u64, wait->task, TASK_MM);
	struct offcpu_call *call;
	void *regs;

	to->kind = OFFCPU_OBJECT_KERNEL_LOCK;
	to->address = wait->blocker & ~LOCK_TYPE;
	to->number = wait->blocker & LOCK_TYPE;
	call = wait->syscall >= 0 ? call_of(wait->syscall) : NULL;
	if (TASK_MM && to->address == mm + MM_MMAP_LOCK) {
		to->protocol = OFFCPU_LOCK_MMAP;
	} else if (call && call->what <= OFFCPU_CALL_SEND_FILE && call->what) {
		regs = (void *)bpf_task_pt_regs(wait->task);
		if (!is_compat(wait->task, regs))
			find_role(to, wait->task, FIELD(u64, regs, REGS_ARG_0));
	}
	identify(to, to->address);
}
