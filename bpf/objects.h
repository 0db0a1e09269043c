/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a wait is for: the object that the arguments of its system call name.
 * Memory of the program is read only where `current` is the sleeper, so that nothing is known of it
 * at the end of the recording, nor with OFFCPU_AT_EXIT=0.
 *
 * A sample has the id of its object: a hash of what identifies the object, with a secret number of
 * this recording, so that programs cannot choose two objects with one id. When an output file has
 * the first wait for an object, its description and name go to user space by `new_objects`.
 */
#pragma once

#include "locks.h"
#include "mapped_files.h"

/* The value is the epoch of the output file in which an object was described. */
BPF_TABLE("lru_hash", u64, u64, objects_seen, OFFCPU_OBJECTS ? OFFCPU_OBJECTS : 1);
BPF_QUEUE(new_objects, struct offcpu_object, OFFCPU_NEW_OBJECTS);

#define PATH_DEPTH 16
/* Descriptors of poll(), or descriptors and words of sets of select(), that are looked at. */
#define POLL_ROUNDS (OFFCPU_MAY_GOTO ? 24 : 4)
#define POLLIN 1			/* include/uapi/asm-generic/poll.h */

/* The path that was passed to a system call; 0 for another object. It is part of the identity. */
static __always_inline void read_path(const struct offcpu_control *ctl, struct offcpu_object *to)
{
	u64 *words = (u64 *)to->name;
	u32 i;

	__builtin_memset(to->name, 0, sizeof(to->name));
	if (!to->in_sleeper || !ctl->object_names ||
	    bpf_probe_read_user_str(to->name, sizeof(to->name), (void *)to->where) <= 1) {
		to->kind = OFFCPU_OBJECT_NONE;
		return;
	}
	for_unrolled(i, OFFCPU_NAME_BYTES / sizeof(u64))
		identify(to, words[i]);
}

/* Read the names from a file up to the root of its file system, as far as there is room. */
static __always_inline void read_names(const struct offcpu_control *ctl, struct offcpu_object *to,
				       u64 dentry)
{
	u64 i, name, parent, at = first_round(ctl, 0);
	long size;

	for_each_round(ctl, i, 0, PATH_DEPTH) {
		barrier_var(at);
		if (at >= OFFCPU_NAME_BYTES / 2)
			break;
		name = kernel_word(to, dentry + DENTRY_NAME);
		size = bpf_probe_read_kernel_str(&to->name[at], OFFCPU_NAME_BYTES / 2,
						 (void *)name);
		parent = kernel_word(to, dentry + DENTRY_PARENT);
		if (size <= 0 || parent == dentry)
			break;
		at += size;
		dentry = parent;
	}
}

/* Read the name of a Unix socket, or of its other end. */
static __always_inline void read_socket_name(struct offcpu_object *to)
{
	u64 peer = kernel_word(to, to->where + UNIX_PEER), other;
	u64 name = kernel_word(to, to->where + UNIX_ADDR);
	u32 size;

	to->own_name = name != 0;
	if (peer) {
		other = kernel_word(to, peer + SOCK_SOCKET);
		if (other)
			to->peer_inode = kernel_word(to, other + SOCKET_INODE + INODE_INO);
		if (!name)
			name = kernel_word(to, peer + UNIX_ADDR);
	}
	if (!name)
		return;
	/* struct sockaddr_un: its path follows the family, and may contain NULs. */
	size = kernel_bytes(to, name + UNIX_ADDR_LEN, sizeof(u32)) - sizeof(u16);
	size = min(size, OFFCPU_NAME_BYTES - 1);
	barrier_var(size);
	size &= OFFCPU_NAME_BYTES - 1;
	bpf_probe_read_kernel(to->name, size, (void *)(name + UNIX_ADDR_NAME + sizeof(u16)));
}

/* Describe an object to user space, unless that was done since the output file began. */
static __always_inline void announce(const struct offcpu_control *ctl, struct offcpu_object *to)
{
	u64 id = to->id, epoch = ctl->epoch + 1, *seen = objects_seen.lookup(&id);

	if (seen && *seen >= epoch && !ctl->copy_all)
		return;
	if (to->kind == OFFCPU_OBJECT_SOCKET)
		to->protocol = kernel_bytes(to, to->where + SOCK_PROTOCOL, SOCK_PROTOCOL_SIZE);
	else if (to->super)
		to->device = kernel_bytes(to, to->super + SUPER_DEV, sizeof(u32));
	if (to->kind != OFFCPU_OBJECT_PATH)
		__builtin_memset(to->name, 0, sizeof(to->name));
	if (ctl->object_names && UNIX_PEER != 0 && to->family == AF_UNIX)
		read_socket_name(to);
	else if (ctl->object_names && to->kind != OFFCPU_OBJECT_SOCKET &&
		 (to->kind <= OFFCPU_OBJECT_ANONYMOUS || to->super))
		read_names(ctl, to, to->fd < 0 ? to->where :
			   kernel_word(to, to->where + FILE_DENTRY));
	if (!new_objects.push(to, 0))
		objects_seen.update(&id, &epoch);
	else
		to->lost |= OFFCPU_OBJECT_FULL;
}

/* The only descriptor of threads that are still blocked in poll() or select(), from user space. */
BPF_TABLE("lru_hash", struct offcpu_polled, u32, polled, OFFCPU_POLLED);

/*
 * The number of the lowest bit of a word that is not 0: how many bits are below. A barrier, since
 * clang 14 would make an instruction of it that BPF does not have, and crash.
 */
static __always_inline u32 lowest_bit(u64 word)
{
	word = ~word & (word - 1);
	word -= word >> 1 & 0x5555555555555555;
	barrier_var(word);
	word = (word & 0x3333333333333333) + (word >> 2 & 0x3333333333333333);
	return ((word + (word >> 4)) & 0x0f0f0f0f0f0f0f0f) * 0x0101010101010101 >> 56;
}

/* A word of a descriptor set of select(), which may be missing. */
static __always_inline u64 set_word(struct offcpu_object *to, u64 set, u64 first)
{
	return set ? user_word(to, set + first / 8) : 0;
}

/*
 * The descriptor for which a task waited in poll() or select(): the only one, or of several the
 * first from which it can read now, at the end of the wait; -1 for none.
 */
static __always_inline s32 polled_descriptor(const struct offcpu_run *run, struct offcpu_object *to,
					     bool is_select, const u64 *args)
{
	u64 none = unknown(run->ctl, 0), nr = none, seen = none, bits = none, i, reads, file;
	u64 number = (u32)(is_select ? args[0] : args[1]), is_input;
	s32 fd, last = none - 1, ready = none - 1;

	for_each_round(run->ctl, i, 0, POLL_ROUNDS) {
		/* So that the verifier finds a later round to be as this one. */
		bits = unknown(run->ctl, bits);
		seen = unknown(run->ctl, seen);
		nr = unknown(run->ctl, nr);
		last = unknown(run->ctl, last);
		number = unknown(run->ctl, number);
		if (!bits && seen >= number)
			break;
		if (!is_select) {		/* struct pollfd: descriptor, events */
			reads = set_word(to, args[0], 64 * seen++);
			fd = reads;
			is_input = reads >> 32 & POLLIN;
		} else if (bits) {
			fd = seen - 64 + lowest_bit(bits);
			is_input = reads & bits & -bits;
			bits &= bits - 1;
		} else {
			reads = set_word(to, args[1], seen);
			bits = reads | set_word(to, args[2], seen) | set_word(to, args[3], seen);
			if (number - seen < 64)
				bits &= (1ULL << (number - seen)) - 1;
			seen += 64;
			continue;
		}
		if (fd < 0)
			continue;
		last = fd;
		nr++;
		if (ready >= 0 || !is_input)
			continue;
		file = file_of(to, run->task, fd);
		if (file && is_readable(to, file))
			ready = fd;
	}
	if (nr == 1 && !bits && seen >= number)
		return to->lost & OFFCPU_OBJECT_FAULT ? -1 : last;
	run->wait->flags |= OFFCPU_OF_SEVERAL;
	return SOCK_RECEIVED ? ready : -1;
}

/* Fill in what the arguments of a system call name. */
static __always_inline void describe_call(const struct offcpu_run *run, struct offcpu_object *to,
					  u32 what, const struct offcpu_arguments *args)
{
	u64 first = args->words[0], second = args->words[1], file, ready;
	u64 waitv[3] = { args->words[2], first, second };	/* val, uaddr, flags */
	u64 length = run->wait->length;		/* 0 if it is not over */
	u32 state = run->wait->prev_state;
	bool is_select = what == OFFCPU_CALL_SELECT;
	s32 fd, number;

	if (what == OFFCPU_CALL_FUTEXES) {
		if (second != 1 || !to->in_sleeper)	/* several are no one object */
			return;
		if (bpf_probe_read_user(waitv, sizeof(waitv), (void *)first))
			to->lost |= OFFCPU_OBJECT_FAULT;
		waitv[2] &= FUTEX_PRIVATE;
	}
	if (what == OFFCPU_CALL_FUTEX || what == OFFCPU_CALL_FUTEXES) {
		to->kind = OFFCPU_OBJECT_FUTEX;
		to->address = waitv[1];
		to->number = waitv[0];
		to->protocol = waitv[2];
		identify(to, waitv[1]);
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
	if (what == OFFCPU_CALL_FORK) {
		number = forked_child(run, to);
		if (number)
			describe_number(to, OFFCPU_OBJECT_PROCESS, number);
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
	if (is_select || what == OFFCPU_CALL_POLL) {
		if (is_select)		/* 0: a sleep */
			second = first && (second | args->words[2] | args->words[3]);
		fd = to->in_sleeper && second ?
		     polled_descriptor(run, to, is_select, args->words) : -1;
		if (fd < 0) {
			if (!is_select || !second)
				describe_number(to, OFFCPU_OBJECT_DESCRIPTORS, second);
			return;
		}
	} else {
		fd = what == OFFCPU_CALL_SEND_FILE && state & TASK_UNINTERRUPTIBLE ? second : first;
	}
	file = file_of(to, run->task, fd);
	if (!file) {
		to->lost |= OFFCPU_OBJECT_CLOSED;
		return;
	}
	if (what == OFFCPU_CALL_EPOLL && state & TASK_INTERRUPTIBLE) {
		ready = ready_file(to, file);
		if (ready)
			file = ready;
		else if (length && length + NS_PER_MS < to->asked_ns)	/* or OFFCPU_NOT_KNOWN */
			to->lost |= OFFCPU_OBJECT_TAKEN;
	}
	describe_open(to, file);
}

/* Count why an object, or a part of it, is not known. */
static __always_inline void count_unknown(u32 lost, u64 ns)
{
	u32 bit;

	/* The bits of OFFCPU_OBJECT_* have their counters' order. */
	for_unrolled(bit, OFFCPU_EVENTS_TAKEN - OFFCPU_OBJECTS_CLOSED + 1)
		if (lost & 1 << bit)
			count(OFFCPU_OBJECTS_CLOSED + bit, ns);
}

/* Describe what the system call of a task names; false if that is nothing. */
static __always_inline bool describe_syscall(const struct offcpu_run *run, struct offcpu_object *to,
					     bool in_sleeper, s32 only_fd)
{
	const struct offcpu_wait *wait = run->wait;
	struct task_struct *task = run->task;
	struct offcpu_arguments args;
	struct offcpu_call *call;
	u32 what;

	if (wait->syscall < 0 || is_exiting(task))
		return false;
	if (!read_arguments(task, &args)) {
		to->lost = OFFCPU_OBJECT_COMPAT;
		return false;
	}
	call = call_of(wait->syscall);
	if (!call && only_fd < 0)
		return false;
	what = only_fd >= 0 ? OFFCPU_CALL_DESCRIPTOR : call ? call->what : OFFCPU_CALL_NONE;
	if (what == OFFCPU_CALL_FUTEX && !waits_for_futex(args.words[1]))
		return false;
	to->in_sleeper = in_sleeper;
	to->number = -1;
	to->sp = args.sp;
	if (call && call->timeout)
		to->asked_ns = asked_of(to, call->timeout, &args, wait->switch_out_ns);
	if (only_fd >= 0)
		args.words[0] = only_fd;
	if (!what)
		return false;
	describe_call(run, to, what, &args);
	if (to->kind == OFFCPU_OBJECT_PATH)
		read_path(run->ctl, to);
	return to->kind != OFFCPU_OBJECT_NONE;
}

/*
 * Find out what a task waits for. The result is in run->to->object: id (0 none), time asked for,
 * and what was lost. The length of the wait is 0 if it is not over; `only_fd` is the only
 * descriptor of poll() or select(), -1 unknown. `only_mapped`: the page of a file or nothing.
 */
static __always_inline void find_object(const struct offcpu_run *run, bool only_mapped,
					bool in_sleeper, s32 only_fd)
{
	struct offcpu_object *to = &run->to->object;
	bool is_described = true;

	__builtin_memset(to, 0, offsetof(struct offcpu_object, name));
	to->asked_ns = OFFCPU_NOT_KNOWN;
	to->pid = run->wait->pid;
	to->id = run->ctl->objects ? run->ctl->hash_key : 0;
	if (!to->id)
		return;
	if (!only_mapped && run->wait->blocker)
		describe_lock(run, to);
	else if (only_mapped || is_fault(run->wait))
		is_described = describe_mapped(run, to);
	else
		is_described = describe_syscall(run, to, in_sleeper, only_fd);
	if (!is_described) {
		to->id = 0;
		return;
	}
	identify(to, to->kind);
	to->id |= !to->id;	/* 0 means none */
	announce(run->ctl, to);
}
