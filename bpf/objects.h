/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a wait is for: the object that the arguments of its system call name.
 *
 * Memory of the program is read only where `current` is the sleeper, so that nothing is known of it
 * at the end of the recording, nor with OFFCPU_AT_EXIT=0.
 *
 * A sample has the id of its object: a hash of what identifies the object, with a secret number of
 * this recording, so that programs cannot choose two objects with one id.
 */
#ifndef OFFCPU_OBJECTS_H
#define OFFCPU_OBJECTS_H

#include "descriptions.h"

/* The only descriptor of threads that are still blocked in poll() or select(), from user space. */
BPF_TABLE("lru_hash", struct offcpu_polled, u32, polled, OFFCPU_POLLED);

#if OFFCPU_OBJECTS
/* Whether a wait is over, and its system call did not end by itself after the time asked for. */
static __always_inline bool ended_early(const struct offcpu_object *to, u64 ns)
{
	return ns && (to->asked_ns == OFFCPU_NOT_KNOWN || ns + NS_PER_MS < to->asked_ns);
}

/* Fill in what the arguments of a system call name. */
static __always_inline void describe_call(struct offcpu_object *to, const struct offcpu_wait *wait,
					  u32 what, const struct offcpu_arguments *args)
{
	u64 first = args->words[0], second = args->words[1], file, ready;
	u32 state = wait->prev_state;
	s32 fd = -1, number;

	if (what == OFFCPU_CALL_FUTEX) {
		to->kind = OFFCPU_OBJECT_FUTEX;
		to->address = first;
		to->number = args->words[2];
		to->protocol = second;
		identify(to, first);
		identify(to, to->pid);
		return;
	}
	if (what == OFFCPU_CALL_CHILD_ID && first == P_PIDFD) {
		first = second;
	} else if (what == OFFCPU_CALL_CHILD || what == OFFCPU_CALL_CHILD_ID) {
		number = what == OFFCPU_CALL_CHILD ? first : first == P_PID ? second : -1;
		describe_number(to, OFFCPU_OBJECT_PROCESS, number > 0 ? number : -1);
		return;
	}
	if (what == OFFCPU_CALL_SEMAPHORES || what == OFFCPU_CALL_MESSAGES) {
		describe_number(to, what == OFFCPU_CALL_SEMAPHORES ? OFFCPU_OBJECT_SEMAPHORES :
								     OFFCPU_OBJECT_MESSAGES, first);
		return;
	}
	if (what == OFFCPU_CALL_PATH || what == OFFCPU_CALL_PATH_AT) {
		to->kind = OFFCPU_OBJECT_PATH;
		to->where = what == OFFCPU_CALL_PATH ? first : second;
		return;
	}
	if (what == OFFCPU_CALL_POLL) {
		if (second != 1 || !to->in_sleeper) {
			describe_number(to, OFFCPU_OBJECT_DESCRIPTORS, second);
			return;
		}
		user_bytes(to, &fd, sizeof(fd), first);
	} else {
		fd = what == OFFCPU_CALL_SEND_FILE && state & TASK_UNINTERRUPTIBLE ? second : first;
	}
	file = file_of(to, wait->task, fd);
	if (!file) {
		to->kind = OFFCPU_OBJECT_NONE;
		to->lost |= OFFCPU_OBJECT_CLOSED;
		return;
	}
	if (what == OFFCPU_CALL_EPOLL && state & TASK_INTERRUPTIBLE) {
		ready = ready_file(to, file);
		if (ready)
			file = ready;
		else if (ended_early(to, wait->length))
			to->lost |= OFFCPU_OBJECT_TAKEN;
	}
	describe_open(to, file);
}

/* Count why an object, or a part of it, is not known. */
static __always_inline void count_unknown(u32 lost, u64 ns)
{
	if (lost & OFFCPU_OBJECT_CLOSED)
		count(OFFCPU_OBJECTS_CLOSED, ns);
	if (lost & OFFCPU_OBJECT_FAULT)
		count(OFFCPU_OBJECTS_UNREADABLE, ns);
	if (lost & OFFCPU_OBJECT_COMPAT)
		count(OFFCPU_OBJECTS_COMPAT, ns);
	if (lost & OFFCPU_OBJECT_FULL)
		count(OFFCPU_OBJECTS_FULL, ns);
	if (lost & OFFCPU_OBJECT_TAKEN)
		count(OFFCPU_EVENTS_TAKEN, ns);
}

/*
 * Find out what a task waits for. The result is in `to`, which is per-CPU memory: id (0 none), time
 * asked for, and what was lost. The length of the wait is 0 if it is not over; `only_fd` is the
 * only descriptor of poll() or select(), -1 unknown.
 */
static __always_inline void find_object(const struct offcpu_control *ctl,
					const struct offcpu_wait *wait, struct offcpu_object *to,
					bool in_sleeper, s32 only_fd)
{
	struct task_struct *task = wait->task;
	struct offcpu_arguments args;
	struct offcpu_call *call;
	u32 what;
	void *regs;

	__builtin_memset(to, 0, offsetof(struct offcpu_object, name));
	to->asked_ns = OFFCPU_NOT_KNOWN;
	if (!ctl->objects || wait->syscall < 0 || is_exiting(task))
		return;
	regs = (void *)bpf_task_pt_regs(task);
	if (is_compat(task, regs)) {
		to->lost = OFFCPU_OBJECT_COMPAT;
		return;
	}
	call = call_of(wait->syscall);
	if (!call && only_fd < 0)
		return;
	read_arguments(regs, &args);
	what = call ? call->what : OFFCPU_CALL_NONE;
	if (what == OFFCPU_CALL_FUTEX && !waits_for_futex(args.words[1]))
		return;
	to->in_sleeper = in_sleeper;
	to->pid = wait->pid;
	to->number = -1;
	to->sp = args.sp;
	if (call && call->timeout)
		to->asked_ns = asked_of(to, call->timeout, &args, wait->switch_out_ns);
	if (only_fd >= 0) {
		what = OFFCPU_CALL_DESCRIPTOR;
		args.words[0] = only_fd;
	}
	if (!what)
		return;
	to->id = ctl->hash_key;
	describe_call(to, wait, what, &args);
	if (to->kind == OFFCPU_OBJECT_PATH)
		read_path(ctl, to);
	if (to->kind == OFFCPU_OBJECT_NONE) {
		to->id = 0;
		return;
	}
	identify(to, to->kind);
	to->id |= !to->id;	/* 0 means none */
	announce(ctl, to);
}
#endif

#endif /* OFFCPU_OBJECTS_H */
