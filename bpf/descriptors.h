/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a descriptor or a number in the arguments of a system call refers to. Kernel memory is read
 * by the offsets of the running kernel. What identifies an object goes into its id, a hash.
 */
#pragma once

#include "arguments.h"

/* include/uapi/linux/stat.h */
enum { S_IFMT = 0170000, S_IFSOCK = 0140000, S_IFREG = 0100000, S_IFBLK = 0060000,
       S_IFDIR = 0040000, S_IFCHR = 0020000, S_IFIFO = 0010000 };
/* include/uapi/linux/magic.h */
enum { ANON_INODE_FS_MAGIC = 0x09041934, PID_FS_MAGIC = 0x50494446, PIPEFS_MAGIC = 0x50495045 };
enum { AF_UNIX = 1, AF_INET = 2, AF_INET6 = 10 };	/* include/linux/socket.h */
enum { RCV_SHUTDOWN = 1 };		/* include/net/sock.h */
enum { LIST_HEAD_PREV = 8 };		/* include/linux/types.h */

#define HEAD_BYTES 96			/* of struct inode, sock, epitem: kernel/objects.py */

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

	sk = kernel_word(to, file + FILE_PRIVATE_DATA);
	sk = kernel_word(to, sk + SOCKET_SK);
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
	if (SOCK_V6_DADDR && to->family == AF_INET6) {
		__builtin_memcpy(to->local, sock + SOCK_V6_RCV_SADDR, sizeof(to->local));
		__builtin_memcpy(to->remote, sock + SOCK_V6_DADDR, sizeof(to->remote));
		identify(to, *(u64 *)(to->remote + 8));
	}
	identify(to, *(u64 *)to->remote);
	if (UNIX_PEER && to->family == AF_UNIX)
		identify(to, kernel_word(to, sk + UNIX_PEER));
}

static __always_inline void describe_file(struct offcpu_object *to, u64 file, u64 super, u32 mode)
{
	u64 magic;

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
	magic = kernel_word(to, super + SUPER_MAGIC);
	if (magic != ANON_INODE_FS_MAGIC && magic != PID_FS_MAGIC)
		return;
	to->kind = OFFCPU_OBJECT_ANONYMOUS;
	identify(to, file);
	identify(to, kernel_word(to, file + FILE_OP));
}

/* The file of a descriptor of a task; 0 if it is not open. */
static __always_inline u64 file_of(struct offcpu_object *to, struct task_struct *task, u32 fd)
{
	void *table = FIELD(void *, POINTER(task, TASK_FILES), FILES_FDT);

	if (fd >= FIELD(u32, table, FDTABLE_MAX_FDS))
		return 0;
	to->fd = fd;
	return kernel_word(to, FIELD(u64, table, FDTABLE_FD) + fd * sizeof(u64));
}

/*
 * The file that ended a wait for an epoll instance; 0 if the instance has none that is ready. A
 * wake-up puts its file at the end of the list of ready ones, which is empty while a thread sleeps.
 */
static __always_inline u64 ready_file(struct offcpu_object *to, u64 epoll)
{
	u64 instance, item;
	const u8 *head;

	if (!EVENTPOLL_READY)
		return 0;
	instance = kernel_word(to, epoll + FILE_PRIVATE_DATA);
	item = kernel_word(to, instance + EVENTPOLL_READY);
	if (!item || item == instance + EVENTPOLL_READY)
		return 0;
	head = head_of(to, item - EPITEM_READY);
	if (FIELD(u64, head, EPITEM_EVENTPOLL) != instance)
		return 0;
	to->fd = FIELD(s32, head, EPITEM_FD);
	return FIELD(u64, head, EPITEM_FILE);
}

/* Whether a read from a socket or pipe returns at once; false for other files. */
static __always_inline bool is_readable(struct offcpu_object *to, u64 file)
{
	u64 data = kernel_word(to, file + FILE_PRIVATE_DATA);
	u64 inode = kernel_word(to, file + FILE_INODE);
	u32 mode = kernel_bytes(to, inode + INODE_MODE, sizeof(u16)) & S_IFMT;

	/* A FIFO without writers may wait for its first one. */
	if (mode == S_IFIFO)
		return kernel_bytes(to, data + PIPE_HEAD, sizeof(u32)) !=
		       kernel_bytes(to, data + PIPE_TAIL, sizeof(u32)) ||
		       (!kernel_bytes(to, data + PIPE_WRITERS, sizeof(u32)) &&
			kernel_word(to, kernel_word(to, inode + INODE_SB) + SUPER_MAGIC) ==
			PIPEFS_MAGIC);
	if (mode != S_IFSOCK)
		return false;
	data = kernel_word(to, data + SOCKET_SK);
	return kernel_bytes(to, data + SOCK_RECEIVED, sizeof(u32)) ||
	       kernel_bytes(to, data + SOCK_SHUTDOWN, sizeof(u8)) & RCV_SHUTDOWN;
}

static __always_inline void describe_open(struct offcpu_object *to, u64 file)
{
	const u8 *inode;
	u32 mode;

	to->where = file;
	inode = head_of(to, kernel_word(to, file + FILE_INODE));
	mode = FIELD(u16, inode, INODE_MODE) & S_IFMT;
	to->inode = FIELD(u64, inode, INODE_INO);
	identify(to, to->inode);
	if (mode == S_IFSOCK)
		describe_socket(to, file);
	else
		describe_file(to, file, FIELD(u64, inode, INODE_SB), mode);
}

/*
 * The child for which a task waits as in vfork(), until it exits or runs another program; 0 if the
 * wait is for something else. It is the last of the task's children. Until the end of such a wait
 * task->vfork_done is set in the child, and the child ends it.
 */
static __always_inline u32 forked_child(const struct offcpu_run *run, struct offcpu_object *to)
{
	u64 last = (u64)POINTER(run->task, TASK_CHILDREN + LIST_HEAD_PREV);
	u64 child = last - TASK_SIBLING;
	u32 tid;

	if (!TASK_CHILDREN || last == (u64)run->task + TASK_CHILDREN)
		return 0;
	tid = late_value(OFFCPU_PID_LEVEL) ?
	      inner_id((char *)kernel_word(to, child + TASK_THREAD_PID)) :
	      kernel_bytes(to, child + TASK_PID, sizeof(u32));
	if (tid != run->wait->waker_tid && !kernel_word(to, child + TASK_VFORK_DONE))
		return 0;
	return tid;
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
