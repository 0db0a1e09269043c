/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Describe an object to user space, with its name, when an output file has the first wait for it.
 *
 * The description goes through the queue `new_objects`.
 */
#ifndef OFFCPU_DESCRIPTIONS_H
#define OFFCPU_DESCRIPTIONS_H

#include "descriptors.h"

/* The value is the epoch of the output file in which an object was described. */
BPF_TABLE("lru_hash", u64, u64, objects_seen, OFFCPU_OBJECTS ? OFFCPU_OBJECTS : 1);
BPF_QUEUE(new_objects, struct offcpu_object, OFFCPU_NEW_OBJECTS);

#if OFFCPU_OBJECTS
#define PATH_DEPTH 16

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
static __always_inline void read_names(const struct offcpu_control *ctl, struct offcpu_object *to,
				       u64 dentry)
{
	u64 i, name, parent, at = first_round(ctl, 0);
	long size;

#pragma clang loop unroll(disable)
	for (i = first_round(ctl, 0); can_loop; i++) {
		barrier_var(i);
		barrier_var(at);
		if (i >= PATH_DEPTH || at >= OFFCPU_NAME_BYTES / 2)
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

/* Read the name of a Unix socket, or of its other end. */
static __always_inline void read_socket_name(struct offcpu_object *to)
{
	u64 peer = kernel_word(to, to->where + UNIX_PEER, sizeof(u64)), other;
	u64 name = kernel_word(to, to->where + UNIX_ADDR, sizeof(u64));
	u32 size;

	to->own_name = name != 0;
	if (peer) {
		other = kernel_word(to, peer + SOCK_SOCKET, sizeof(u64));
		if (other)
			to->peer_inode = kernel_word(to, other + SOCKET_INODE + INODE_INO,
						     sizeof(u64));
		if (!name)
			name = kernel_word(to, peer + UNIX_ADDR, sizeof(u64));
	}
	if (!name)
		return;
	/* struct sockaddr_un: its path follows the family, and may contain NULs. */
	size = kernel_word(to, name + UNIX_ADDR_LEN, sizeof(u32)) - sizeof(u16);
	if (size > OFFCPU_NAME_BYTES - 1)
		size = OFFCPU_NAME_BYTES - 1;
	barrier_var(size);
	size &= OFFCPU_NAME_BYTES - 1;
	bpf_probe_read_kernel(to->name, size, (void *)(name + UNIX_ADDR_NAME + sizeof(u16)));
}

/* Read the name of a new object: the path of a file or a Unix socket. */
static __always_inline void read_name(const struct offcpu_control *ctl, struct offcpu_object *to)
{
	if (to->kind != OFFCPU_OBJECT_SOCKET)
		read_names(ctl, to, kernel_word(to, to->where + FILE_DENTRY, sizeof(u64)));
	else if (UNIX_PEER && to->family == AF_UNIX)
		read_socket_name(to);
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
		read_name(ctl, to);
	if (!new_objects.push(to, 0))
		objects_seen.update(&id, &epoch);
	else
		to->lost |= OFFCPU_OBJECT_FULL;
}
#endif

#endif /* OFFCPU_DESCRIPTIONS_H */
