/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Walk user stacks along frame pointers, reading a window of the stack at a time.
 *
 * The kernel's walk (perf_callchain_user() in arch/x86/events/core.c) reads each frame by itself,
 * for some 35 ns, until one cannot be read: that page fault, at the end of nearly every walk, takes
 * some 600 ns. This walk finds the same frames in up to 1 KB of stack, read at once for 55 ns, and
 * does not try what cannot be a frame. With OFFCPU_SUM_CALLERS it begins in the top of the stack,
 * which is read in any case (callers.h).
 *
 * Only with OFFCPU_FRAME_POINTERS, for tasks in 64-bit mode. CODE_MASK: the bits of an address that
 * are no signature (arm64).
 */
#pragma once

#include "maps.h"

#define WORD_MASK (sizeof(u64) - 1)
#define NEAR_STACK (8ULL << 20)		/* the usual RLIMIT_STACK */
#define LOWEST_ADDRESS 4096		/* the usual vm.mmap_min_addr or less */
#define PAGE 4096
#define FRAME_BYTES 16			/* the caller's frame pointer, the return address */
#define WINDOW_WORDS (OFFCPU_SUM_CALLERS ? 256 : 128)
#define WINDOW_BYTES (WINDOW_WORDS * sizeof(u64))

/* A walk. In memory, else the verifier would follow it for each path that leads to it. */
struct offcpu_window {
	volatile u64 base;		/* address of the first word */
	volatile u64 room;		/* frames begin less than this above base, 0 none */
	u64 words[WINDOW_WORDS + 1];	/* for the verifier, a frame may begin at the last one */
};

BPF_TABLE("percpu_array", u32, struct offcpu_window, windows, 1);

/* Read `least` bytes of memory or more, up to a window; false if one of them cannot be read. */
static __always_inline bool read_words(struct offcpu_window *window, u64 address, u64 bytes,
				       u64 least)
{
	barrier_var(bytes);
	/* One bound after the other: clang makes one range check of both, lost on the verifier. */
	if (bytes > WINDOW_BYTES)
		bytes = WINDOW_BYTES;
	else if (bytes < least)
		bytes = least;
	window->base = address;
	window->room = bytes - FRAME_BYTES + 1;
	return !bpf_probe_read_user(window->words, bytes, (void *)address);
}

/* Read up to a window of memory, but nothing beyond the page of `address`. */
static __always_inline bool read_window(struct offcpu_window *window, u64 address)
{
	if (read_words(window, address, PAGE - (address & (PAGE - 1)), FRAME_BYTES))
		return true;
	window->room = 0;
	return false;
}

static __always_inline bool is_same_block(const u64 *kept, const u64 *words)
{
	u32 i;

	/* Unrolled it takes half the time. */
	for_unrolled(i, BLOCK_WORDS)
		if (kept[i] != words[i])
			return false;
	return true;
}

/* Read the top of the stack, keep it, and mark the blocks of words that have changed. */
static __always_inline void take_top(struct offcpu_window *window, struct offcpu_top *top, u64 sp)
{
	/* In memory: the verifier would follow every set of blocks. */
	volatile u64 *stale = &top->stale;
	u32 block;

	/* All of the read fails if the mapping ends within it. Words that cannot be read are 0. */
	if (!read_words(window, sp, top->walked, TOP_BYTES))
		read_window(window, sp);
	for_unrolled(block, TOP_BLOCKS)
		if (!is_same_block(&top->words[block * BLOCK_WORDS],
				   &window->words[block * BLOCK_WORDS]))
			*stale |= 1ULL << block;
	if (!*stale)
		return;
	/* A loop of its own keeps the one above, which is run most, short. */
	for_unrolled(block, TOP_BLOCKS)
		if (*stale & 1ULL << block)
			__builtin_memcpy(&top->words[block * BLOCK_WORDS],
					 &window->words[block * BLOCK_WORDS],
					 BLOCK_WORDS * sizeof(u64));
}

/*
 * Walk the stack of `current`, leaf first. Return the number of frames, 0 if it is not in 64-bit
 * mode. Clear stack->check if the stack is not the same as before.
 */
static __always_inline u32 walk_frames(const struct offcpu_control *ctl,
				       struct task_struct *current, struct offcpu_stack *stack,
				       struct offcpu_top *top)
{
	void *regs = (void *)bpf_task_pt_regs(current);
	struct offcpu_window *window = windows.lookup(ONLY_KEY);
	u64 changed, fp, at, ip, i;

	if (!window || !is_64_bit(regs))
		return 0;
	window->room = 0;
	if (top)
		take_top(window, top, FIELD(u64, regs, REGS_SP));
	fp = FIELD(u64, regs, REGS_FP);
	/* Code without frame pointers uses the register otherwise: the stack will be copied. */
	if (OFFCPU_COPIES && fp - FIELD(u64, regs, REGS_SP) >= NEAR_STACK)
		fp = 0;
	changed = stack->ips[0] ^ FIELD(u64, regs, REGS_IP);
	stack->ips[0] = FIELD(u64, regs, REGS_IP);
	for_each_round(ctl, i, 1, OFFCPU_FRAME_LIMIT) {
		at = fp - window->base;
		if (at >= window->room || at & WORD_MASK) {
			if (fp < LOWEST_ADDRESS || fp & WORD_MASK || !read_window(window, fp))
				break;
			at = fp + FRAME_BYTES - FIELD(u64, regs, REGS_SP);
			/* Next time the top is read up to this frame, if it is near enough. */
			if (top && at <= WINDOW_BYTES && at > top->walked)
				top->walked = at;
			at = 0;
		}
		at = at / sizeof(u64) & (WINDOW_WORDS - 1);
		fp = window->words[at];
		ip = window->words[at + 1] & CODE_MASK;
		if (!ip)
			break;
		changed |= stack->ips[i] ^ ip;
		stack->ips[i] = ip;
	}
	if (changed || stack->nr != i)
		stack->check = 0;
	return i;
}
