/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The mapped file whose page a task waits for in a page fault, which no system call names.
 * folio_wait_bit_common() (mm/filemap.c) keeps a struct wait_page_queue on the stack of the task,
 * above its stack pointer, as long as it waits: the folio, the task, and the function to call.
 */
#pragma once

#include "descriptors.h"

#define NOT_OF_FILE 3ULL		/* in folio->mapping, if memory is anonymous or movable */
#define FIRST_WORD (FOLIO_WAIT_FUNC / sizeof(u64))

/* The folio for which a task waits; 0 for none. */
static __always_inline u64 awaited_folio(const struct offcpu_run *run)
{
	u64 function = late_value(OFFCPU_FOLIO_WAKE), sp = FIELD(u64, run->task, TASK_KERNEL_SP);
	struct offcpu_scratch *room = run->to;
	u64 size, folio = 0, i;

	if (!function)
		return 0;
	/* Through memory: a number, no pointer, to the verifier. */
	*(volatile u64 *)room->stack = (u64)bpf_task_pt_regs(run->task);
	size = *(volatile u64 *)room->stack - sp;
	size = min(size, sizeof(room->stack));
	barrier_var(size);
	if (size > sizeof(room->stack) || bpf_probe_read_kernel(room->stack, size, (void *)sp))
		return 0;
	for_each_round(run->ctl, i, FIRST_WORD, STACK_WORDS) {
		if (room->stack[i] != function)
			continue;
		barrier_var(i);
		if (i < FIRST_WORD || i >= STACK_WORDS)
			break;
		if (room->stack[i - (FOLIO_WAIT_FUNC - FOLIO_WAIT_TASK) / sizeof(u64)] ==
		    (u64)run->task)
			folio = room->stack[i - FIRST_WORD];
		break;
	}
	return unknown(run->ctl, folio);
}

/* Whether a wait may be one for a page of a file, and nothing else says what it is for. */
static __always_inline bool is_fault(const struct offcpu_wait *wait)
{
	return FOLIO_WAIT_FUNC && wait->syscall == OFFCPU_SYSCALL_NONE &&
	       wait->prev_state & TASK_UNINTERRUPTIBLE && !(wait->flags & OFFCPU_PREEMPTED_WAIT);
}

/* Describe the file for whose page a task waits, as describe_open() does; false for none. */
static __always_inline bool describe_mapped(const struct offcpu_run *run, struct offcpu_object *to)
{
	u64 folio = awaited_folio(run), mapping, host, alias;
	const u8 *inode;

	mapping = folio ? kernel_word(to, folio + FOLIO_MAPPING) : 0;
	if (!mapping || mapping & NOT_OF_FILE)
		return false;
	host = kernel_word(to, mapping);	/* its first member */
	alias = kernel_word(to, host + INODE_DENTRY);
	inode = head_of(to, host);
	if (!alias || (FIELD(u16, inode, INODE_MODE) & S_IFMT) != S_IFREG)
		return false;
	to->kind = OFFCPU_OBJECT_FILE;
	to->fd = -1;
	to->where = alias - DENTRY_ALIAS;
	to->inode = FIELD(u64, inode, INODE_INO);
	to->super = FIELD(u64, inode, INODE_SB);
	identify(to, to->inode);
	identify(to, to->super);
	return true;
}
