/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Tell the callers of short waits apart without unwinding, for sums of programs that have no frame
 * pointers. Their chain of frame pointers ends in libc, in the same place for all callers. So
 * of the words at the top of the stack those are hashed that may be return addresses: all that
 * point into the program's own text, and those that point to where libraries are mapped unless
 * malloc() may have returned them (it aligns, code does not). Other words change from wait to wait.
 * Old return addresses do no harm: one path of calls leads to a few hashes.
 *
 * A thread that waits in the same place again has most of these words again. So they are kept and
 * compared, which costs less than the hash; that of eight words is made again if one has changed.
 *
 * The first wait of each hash is sent with a copy of its stack, which user space unwinds for all.
 */
#pragma once

#include "copies.h"

static __always_inline bool is_same(const struct offcpu_layout *a, const struct offcpu_layout *b)
{
	return !((a->code ^ b->code) | (a->key ^ b->key) | (a->top ^ b->top) |
		 (a->sp ^ b->sp) | (a->thread ^ b->thread));
}

/* Hash the words of a block that may be return addresses; 0 if there are none. */
static __always_inline u64 hash_block(const struct offcpu_layout *at, const u64 *words)
{
	u64 hash = 0;
	u32 i;

	for_unrolled(i, BLOCK_WORDS)
		if (may_return(at, words[i] & CODE_MASK, LIBRARIES))
			hash = mix(hash, words[i] & CODE_MASK);
	return hash;
}

/* Hash the chain, the layout and the top of a stack again, as far as they have changed. */
static __always_inline void hash_top(const struct offcpu_run *run, const struct offcpu_layout *at)
{
	struct offcpu_top *top = run->storage->top;
	struct offcpu_stack *stack = run->user;
	volatile u64 *stale = &top->stale;	/* in memory: as in take_top() */
	u64 hash;
	u32 block;

	if (!is_same(&top->layout, at)) {
		top->layout = *at;
		top->chain = 0;
		top->stale = ALL_BLOCKS;
	}
	if (!stack->check || !top->chain) {
		top->chain = hash_chain(run, at);
		stack->check = 1;
	}
	/* Stacks end near the thread pointer. */
	hash = mix(*(volatile u64 *)&top->chain, at->key);
	hash = mix(hash, stack->ips[0] ^ (at->thread - at->sp) << 16);
	for_unrolled(block, TOP_BLOCKS) {
		if (*stale & 1ULL << block)
			top->hashes[block] = hash_block(at, &top->words[block * BLOCK_WORDS]);
		if (top->hashes[block])
			hash = mix(hash, top->hashes[block]);
	}
	top->stale = 0;
	top->caller = hash ? hash : 1;
}

/*
 * Hash where `current` waits and its callers, alike for all threads of a program and user. Return 0
 * for kernel threads and tasks that are not in 64-bit mode.
 */
static __always_inline u64 hash_callers(const struct offcpu_run *run)
{
	struct task_struct *task = run->task;
	struct offcpu_top *top = run->storage->top;
	struct offcpu_layout at;

	if (is_kernel_thread(task) || !find_layout(task, (void *)bpf_task_pt_regs(task), &at))
		return 0;
	if (top->stale || !run->user->check || !top->caller || !is_same(&top->layout, &at))
		hash_top(run, &at);
	/* For the verifier, both paths go on as one. */
	return *(volatile u64 *)&top->caller;
}
