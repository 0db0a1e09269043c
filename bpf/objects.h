/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a wait is for: the object that the arguments of its system call name.
 *
 * The arguments are in the registers with which the thread entered the kernel. The map `calls` says
 * what each system call has: a descriptor, the address of a futex, a pid. Kernel memory is read
 * by the offsets of the running kernel. Memory of the program is read only where `current` is the
 * sleeper, so that nothing is known of it at the end of the recording, nor with OFFCPU_AT_EXIT=0.
 *
 * A sample has the id of its object: a hash of what identifies the object, with a secret number of
 * this recording, so that nobody can make two objects with one id. When an object is seen for the
 * first time in an output file, its description goes to user space by the queue `new_objects`.
 */
#ifndef OFFCPU_OBJECTS_H
#define OFFCPU_OBJECTS_H

#include "stacks.h"

/* The value is the epoch of the output file in which an object was described. */
BPF_TABLE("lru_hash", u64, u64, objects_seen, OFFCPU_OBJECTS ? OFFCPU_OBJECTS : 1);
BPF_QUEUE(new_objects, struct offcpu_object, OFFCPU_NEW_OBJECTS);
BPF_TABLE("array", u32, struct offcpu_call, calls, OFFCPU_SYSCALL_NUMBERS);

#if OFFCPU_OBJECTS
/* include/uapi/linux/stat.h */
#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define S_IFREG 0100000
#define S_IFBLK 0060000
#define S_IFDIR 0040000
#define S_IFCHR 0020000
#define S_IFIFO 0010000
/* include/uapi/linux/magic.h */
#define ANON_INODE_FS_MAGIC 0x09041934
/* include/linux/socket.h */
#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
/* arch/x86/include/asm/thread_info.h */
#define TS_COMPAT 2
/* arch/arm64/include/uapi/asm/ptrace.h */
#define PSR_MODE32_BIT 0x10
/* include/uapi/linux/futex.h */
#define FUTEX_COMMAND 0x7f
#define FUTEX_WAIT 0
#define FUTEX_LOCK_PI 6
#define FUTEX_WAIT_BITSET 9
#define FUTEX_WAIT_REQUEUE_PI 11
#define FUTEX_LOCK_PI2 13
#define FUTEX_CLOCK_REALTIME 256
#define FUTEX_TID_MASK 0x3fffffff
#define FUTEX_WAITERS 0x80000000
/* include/uapi/linux/time.h, wait.h */
#define CLOCK_MONOTONIC 1
#define TIMER_ABSTIME 1
#define P_PID 1

#define PATH_DEPTH 16
#define HEAD_BYTES 96			/* of struct inode and struct sock: see kernel_facts.py */
#define NS_PER_MS 1000000ULL
#define NS_PER_S 1000000000ULL

/* Memory of the kernel at an address of which the verifier knows nothing. */
static __always_inline u64 kernel_word(struct offcpu_object *to, u64 address, u32 size)
{
	u64 word = 0;

	if (bpf_probe_read_kernel(&word, size, (void *)address))
		to->lost |= OFFCPU_OBJECT_FAULT;
	return word;
}

/* Memory of `current`. */
static __always_inline void user_bytes(struct offcpu_object *to, void *into, u32 size, u64 address)
{
	if (bpf_probe_read_user(into, size, (void *)address))
		to->lost |= OFFCPU_OBJECT_FAULT;
}

static __always_inline void identify(struct offcpu_object *to, u64 word)
{
	to->id = mix(to->id, word);
}

/*
 * The begin of a structure, which holds all that is wanted of it; 0 where it cannot be read. One
 * read takes less than one for each member. The room is that of names, which are read later.
 */
static __always_inline const u8 *head_of(struct offcpu_object *to, u64 address)
{
	if (bpf_probe_read_kernel(to->name, HEAD_BYTES, (void *)address)) {
		to->lost |= OFFCPU_OBJECT_FAULT;
		__builtin_memset(to->name, 0, HEAD_BYTES);
	}
	return to->name;
}

static __always_inline void describe_socket(struct offcpu_object *to, u64 file)
{
	const u8 *sock;
	u64 sk;

	sk = kernel_word(to, file + FILE_PRIVATE_DATA, sizeof(u64));
	sk = kernel_word(to, sk + SOCKET_SK, sizeof(u64));
	to->kind = OFFCPU_OBJECT_SOCKET;
	to->where = sk;
	sock = head_of(to, sk);
	to->family = FIELD(u16, sock, SOCK_FAMILY);
	if (to->family == AF_INET || to->family == AF_INET6) {
		to->local_port = FIELD(u16, sock, SOCK_NUM);
		to->remote_port = __builtin_bswap16(FIELD(u16, sock, SOCK_DPORT));
		identify(to, (u64)to->local_port << 16 | to->remote_port);
	}
	if (to->family == AF_INET) {
		*(u32 *)to->local = FIELD(u32, sock, SOCK_RCV_SADDR);
		*(u32 *)to->remote = FIELD(u32, sock, SOCK_DADDR);
	}
#ifdef SOCK_V6_DADDR
	if (to->family == AF_INET6) {
		__builtin_memcpy(to->local, sock + SOCK_V6_RCV_SADDR, sizeof(to->local));
		__builtin_memcpy(to->remote, sock + SOCK_V6_DADDR, sizeof(to->remote));
		identify(to, *(u64 *)(to->remote + 8));
	}
#endif
	identify(to, *(u64 *)to->remote);
#ifdef UNIX_PEER
	if (to->family == AF_UNIX)
		identify(to, kernel_word(to, sk + UNIX_PEER, sizeof(u64)));
#endif
}

static __always_inline void describe_file(struct offcpu_object *to, u64 file, u64 super, u32 mode)
{
	to->kind = mode == S_IFREG ? OFFCPU_OBJECT_FILE :
		   mode == S_IFDIR ? OFFCPU_OBJECT_DIRECTORY :
		   mode == S_IFCHR ? OFFCPU_OBJECT_CHARACTER :
		   mode == S_IFBLK ? OFFCPU_OBJECT_BLOCK :
		   mode == S_IFIFO ? OFFCPU_OBJECT_PIPE : OFFCPU_OBJECT_ANONYMOUS;
	to->super = super;
	identify(to, super);
	/* All eventfds and their like have one inode. They are regular files since Linux 6.16. */
	if (mode && mode != S_IFREG)
		return;
	if (kernel_word(to, super + SUPER_MAGIC, sizeof(u64)) != ANON_INODE_FS_MAGIC)
		return;
	to->kind = OFFCPU_OBJECT_ANONYMOUS;
	identify(to, file);
	identify(to, kernel_word(to, file + FILE_OP, sizeof(u64)));
}

/* What a descriptor of a task refers to. Return false if it is not open. */
static __always_inline bool describe_fd(struct offcpu_object *to, struct task_struct *task, u32 fd)
{
	void *files = FIELD(void *, task, TASK_FILES), *table;
	const u8 *inode;
	u64 file;
	u32 mode;

	table = FIELD(void *, files, FILES_FDT);
	if (fd >= FIELD(u32, table, FDTABLE_MAX_FDS))
		return false;
	file = kernel_word(to, FIELD(u64, table, FDTABLE_FD) + fd * sizeof(u64), sizeof(u64));
	if (!file)
		return false;
	to->fd = fd;
	to->where = file;
	inode = head_of(to, kernel_word(to, file + FILE_INODE, sizeof(u64)));
	mode = FIELD(u16, inode, INODE_MODE) & S_IFMT;
	to->inode = FIELD(u64, inode, INODE_INO);
	identify(to, to->inode);
	if (mode == S_IFSOCK)
		describe_socket(to, file);
	else
		describe_file(to, file, FIELD(u64, inode, INODE_SB), mode);
	return true;
}

/* The time of a struct timespec, ns; OFFCPU_NOT_KNOWN if it is not known. */
static __always_inline u64 timespec_ns(struct offcpu_object *to, u64 address)
{
	u64 spec[2] = {};

	if (!address || bpf_probe_read_user(spec, sizeof(spec), (void *)address))
		return OFFCPU_NOT_KNOWN;
	return spec[0] * NS_PER_S + spec[1];
}

/* The time from the begin of the wait to a moment of CLOCK_MONOTONIC. */
static __always_inline u64 until(u64 moment, u64 begin)
{
	return moment == OFFCPU_NOT_KNOWN ? moment : moment > begin ? moment - begin : 0;
}

struct offcpu_arguments {
	u64 words[4];
	u64 sp;
};

/* After which time the system call was to end by itself. */
static __always_inline u64 asked_of(struct offcpu_object *to, u32 timeout,
				    const struct offcpu_arguments *args, u64 begin)
{
	u64 milliseconds = 0, spec = 0;

	if (timeout == OFFCPU_TIMEOUT_MS_2)
		milliseconds = args->words[2];
	else if (timeout == OFFCPU_TIMEOUT_MS_3)
		milliseconds = args->words[3];
	else if (!to->in_sleeper)
		return OFFCPU_NOT_KNOWN;
	else if (timeout == OFFCPU_TIMEOUT_SPEC_0)
		return timespec_ns(to, args->words[0]);
	else if (timeout == OFFCPU_TIMEOUT_SPEC_2)
		return timespec_ns(to, args->words[2]);
	else if (timeout == OFFCPU_TIMEOUT_SPEC_3)
		return timespec_ns(to, args->words[3]);
	else if (timeout == OFFCPU_TIMEOUT_CLOCK) {
		spec = timespec_ns(to, args->words[2]);
		if (!(args->words[1] & TIMER_ABSTIME))
			return spec;
		return args->words[0] == CLOCK_MONOTONIC ? until(spec, begin) : OFFCPU_NOT_KNOWN;
	} else if (timeout == OFFCPU_TIMEOUT_FUTEX && args->words[3]) {
		spec = timespec_ns(to, args->words[3]);
		if ((args->words[1] & FUTEX_COMMAND) == FUTEX_WAIT)
			return spec;
		if (args->words[1] & FUTEX_CLOCK_REALTIME)
			return OFFCPU_NOT_KNOWN;
		return until(spec, begin);
	}
	return (s32)milliseconds > 0 ? (u32)milliseconds * NS_PER_MS : OFFCPU_NOT_KNOWN;
}

static __always_inline bool waits_for_futex(u64 operation)
{
	u32 command = operation & FUTEX_COMMAND;

	return command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET || command == FUTEX_LOCK_PI ||
	       command == FUTEX_LOCK_PI2 || command == FUTEX_WAIT_REQUEUE_PI;
}

/* An object that a number identifies: a pid, or the id of a System V object. */
static __always_inline void describe_number(struct offcpu_object *to, u32 kind, s32 number)
{
	to->kind = kind;
	to->number = number;
	identify(to, (u32)number);
	if (kind == OFFCPU_OBJECT_PROCESS)
		identify(to, to->pid);
}

/* Fill in what the arguments of a system call name. */
static __always_inline void describe_call(struct offcpu_object *to, struct task_struct *task,
					  u32 what, u32 state, const struct offcpu_arguments *args)
{
	u64 first = args->words[0], second = args->words[1];
	s32 fd = -1, number;

	if (what == OFFCPU_CALL_FUTEX) {
		to->kind = OFFCPU_OBJECT_FUTEX;
		to->address = first;
		identify(to, first);
		identify(to, to->pid);
		return;
	}
	if (what == OFFCPU_CALL_CHILD || what == OFFCPU_CALL_CHILD_ID) {
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
	if (!describe_fd(to, task, fd)) {
		to->kind = OFFCPU_OBJECT_NONE;
		to->lost |= OFFCPU_OBJECT_CLOSED;
	}
}

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
#pragma clang loop unroll(full)
	for (i = 0; i < OFFCPU_NAME_BYTES / sizeof(u64); i++)
		identify(to, words[i]);
}

/* Read the names from a file up to the root of its file system, as far as there is room. */
static __always_inline void read_names(struct offcpu_object *to, u64 dentry)
{
	u64 name, parent;
	u32 i, at = 0;
	long size;

#pragma clang loop unroll(disable)
	for (i = 0; i < PATH_DEPTH; i++) {
		barrier_var(i);
		barrier_var(at);
		if (at >= OFFCPU_NAME_BYTES / 2)
			break;
		name = kernel_word(to, dentry + DENTRY_NAME, sizeof(u64));
		size = bpf_probe_read_kernel_str(&to->name[at], OFFCPU_NAME_BYTES / 2,
						 (void *)name);
		parent = kernel_word(to, dentry + DENTRY_PARENT, sizeof(u64));
		if (size <= 0 || parent == dentry)
			break;
		at += size;
		dentry = parent;
	}
}

/* Read what does not identify an object. */
static __always_inline void read_rest(struct offcpu_object *to)
{
	if (to->kind == OFFCPU_OBJECT_SOCKET)
		to->protocol = kernel_word(to, to->where + SOCK_PROTOCOL, SOCK_PROTOCOL_SIZE);
	else if (to->super)
		to->device = kernel_word(to, to->super + SUPER_DEV, sizeof(u32));
}

/* Read the name of a new object: the path of a file or a Unix socket. */
static __always_inline void read_name(struct offcpu_object *to)
{
	u64 from = 0;
	u32 size;

	if (to->kind == OFFCPU_OBJECT_SOCKET) {
#ifdef UNIX_PEER
		u64 peer, other;

		if (to->family != AF_UNIX)
			return;
		from = kernel_word(to, to->where + UNIX_ADDR, sizeof(u64));
		peer = kernel_word(to, to->where + UNIX_PEER, sizeof(u64));
		if (peer) {
			other = kernel_word(to, peer + SOCK_SOCKET, sizeof(u64));
			if (other)
				to->peer_inode = kernel_word(
					to, other + SOCKET_INODE + INODE_INO, sizeof(u64));
			if (!from)
				from = kernel_word(to, peer + UNIX_ADDR, sizeof(u64));
		}
		if (!from)
			return;
		/* struct sockaddr_un: its path follows the family, and may contain NULs. */
		size = kernel_word(to, from + UNIX_ADDR_LEN, sizeof(u32)) - sizeof(u16);
		if (size > OFFCPU_NAME_BYTES - 1)
			size = OFFCPU_NAME_BYTES - 1;
		barrier_var(size);
		size &= OFFCPU_NAME_BYTES - 1;
		bpf_probe_read_kernel(to->name, size,
				      (void *)(from + UNIX_ADDR_NAME + sizeof(u16)));
#endif
		return;
	}
	read_names(to, kernel_word(to, to->where + FILE_DENTRY, sizeof(u64)));
}

/* Describe an object to user space, unless that was done since the output file began. */
static __always_inline void announce(const struct offcpu_control *ctl, struct offcpu_object *to)
{
	u64 *seen, id = to->id, epoch = ctl->epoch + 1;

	seen = objects_seen.lookup(&id);
	if (seen && *seen >= epoch && !ctl->copy_all)
		return;
	read_rest(to);
	if (to->kind != OFFCPU_OBJECT_PATH)
		__builtin_memset(to->name, 0, sizeof(to->name));
	if (ctl->object_names && to->kind <= OFFCPU_OBJECT_ANONYMOUS)
		read_name(to);
	if (!new_objects.push(to, 0))
		objects_seen.update(&id, &epoch);
	else
		to->lost |= OFFCPU_OBJECT_FULL;
}

/* Whether a task is in a system call of a 32-bit program, which has other numbers and registers. */
static __always_inline bool is_compat(struct task_struct *task, void *regs)
{
#ifdef TASK_STATUS
	if (FIELD(u32, task, TASK_STATUS) & TS_COMPAT)
		return true;
#endif
#ifdef REGS_CS
	if (FIELD(u64, regs, REGS_CS) != USER_CS)
		return true;
#endif
#ifdef REGS_PSTATE
	if (FIELD(u64, regs, REGS_PSTATE) & PSR_MODE32_BIT)
		return true;
#endif
	return false;
}

/* The first four arguments of a system call. */
static __always_inline void read_arguments(void *regs, struct offcpu_arguments *args)
{
	args->words[0] = FIELD(u64, regs, REGS_ARG_0);
	args->words[1] = FIELD(u64, regs, REGS_ARG_1);
	args->words[2] = FIELD(u64, regs, REGS_ARG_2);
	args->words[3] = FIELD(u64, regs, REGS_ARG_3);
	args->sp = FIELD(u64, regs, REGS_SP);
}

/* The description of the system call in which a task waits; NULL if it names no object. */
static __always_inline struct offcpu_call *call_of(s32 syscall)
{
	u32 number = syscall;
	struct offcpu_call *call = calls.lookup(&number);

	return call && (call->what || call->timeout) ? call : NULL;
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
}

/*
 * Find out what a task waits for. The result is in `to`, which is per-CPU memory: id (0 none), time
 * asked for, and what was lost.
 */
static __always_inline void find_object(const struct offcpu_control *ctl, struct task_struct *task,
					struct offcpu_object *to, s32 syscall, u32 state, u64 begin,
					u32 pid, bool in_sleeper)
{
	struct offcpu_arguments args;
	struct offcpu_call *call;
	void *regs;

	__builtin_memset(to, 0, offsetof(struct offcpu_object, name));
	to->asked_ns = OFFCPU_NOT_KNOWN;
	if (!ctl->objects || syscall < 0)
		return;
	regs = (void *)bpf_task_pt_regs(task);
	if (is_compat(task, regs)) {
		to->lost = OFFCPU_OBJECT_COMPAT;
		return;
	}
	call = call_of(syscall);
	if (!call)
		return;
	read_arguments(regs, &args);
	if (call->what == OFFCPU_CALL_FUTEX && !waits_for_futex(args.words[1]))
		return;
	to->in_sleeper = in_sleeper;
	to->pid = pid;
	to->number = -1;
	to->sp = args.sp;
	if (call->timeout)
		to->asked_ns = asked_of(to, call->timeout, &args, begin);
	if (!call->what)
		return;
	to->id = ctl->hash_key;
	describe_call(to, task, call->what, state, &args);
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
