/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * User stacks along frame pointers, read by windows.
 *
 * The kernel's own walk (bpf_get_stack: perf_callchain_user() in arch/x86/events/core.c) reads each frame by
 * itself, some 35 ns, and goes on until one cannot be read. That ends nearly every walk, because the last
 * frame pointer is 0 or was used for something else, and that page fault costs more than all the rest: some
 * 600 ns. Here up to 1 KB of stack is read at once and frames are taken from it, and what cannot be a frame
 * is not tried. (A read costs some 40 ns, 1 KB of it 15 ns more: with 512 bytes it took two where one does.) The
 * frames are the same. Where the top of the stack is looked at besides (callers.h), the walk begins in what that read.
 *
 * Only where user space saw to OFFCPU_FRAME_POINTERS: x86-64, and there for tasks in 64-bit mode.
 */
#define USER_CS 0x33			/* __USER_CS, arch/x86/include/asm/segment.h */
#define WORD_MASK (sizeof(u64) - 1)
#define NEAR_STACK (8ULL << 20)		/* RLIMIT_STACK as most have it */
#define LOWEST_ADDRESS 4096		/* nothing is mapped below, see mmap_min_addr */
#define PAGE 4096
#define FRAME_BYTES 16			/* the caller's frame pointer, the return address */
#define WINDOW_WORDS (OFFCPU_SUM_CALLERS ? 256 : 128)
#define WINDOW_BYTES (WINDOW_WORDS * sizeof(u64))

#if OFFCPU_FRAME_POINTERS
/*
 * What is read stands here, and not in the walk's variables, so that the verifier forgets how it came about:
 * else it would follow the walk anew for each way.
 */
struct offcpu_window {
	volatile u64 base;		/* its first address */
	volatile u64 room;		/* frames begin less than this above it; 0: nothing could be read */
	u64 words[WINDOW_WORDS + 1];	/* a frame may begin in the last one, as far as the verifier knows */
};

BPF_TABLE("percpu_array", u32, struct offcpu_window, windows, 1);

/* Read up to a window from an address on, but into no page that this does not lie in; false if that fails. */
__inline bool read_window(struct offcpu_window *window, u64 address)
{
	u64 bytes = PAGE - (address & (PAGE - 1));

	BOUNDED(bytes);
	if (bytes > WINDOW_BYTES)
		bytes = WINDOW_BYTES;
	else if (bytes < FRAME_BYTES)
		bytes = FRAME_BYTES;
	window->base = address;
	window->room = bytes - FRAME_BYTES + 1;
	if (!bpf_probe_read_user(window->words, bytes, (void *)address))
		return true;
	window->room = 0;
	return false;
}

#if OFFCPU_SUM_CALLERS
/* Read the stack of `current` from its top on. What cannot be read is 0, as the helper leaves it. */
__inline void read_top(struct offcpu_window *window, struct offcpu_top *top, u64 sp)
{
	u64 bytes = top->walked;

	BOUNDED(bytes);
	/* One bound after the other: as one range, compilers test a difference, which tells verifiers nothing. */
	if (bytes > WINDOW_BYTES)
		bytes = WINDOW_BYTES;
	else if (bytes < TOP_BYTES)
		bytes = TOP_BYTES;
	window->base = sp;
	window->room = bytes - FRAME_BYTES + 1;
	/* Where the mapping ends, all of it fails. */
	if (bpf_probe_read_user(window->words, bytes, (void *)sp))
		read_window(window, sp);
}

__inline bool is_same_block(const u64 *kept, const u64 *words)
{
	u32 i;

	/* Unrolled it takes half the time. */
#pragma clang loop unroll(full)
	for (i = 0; i < BLOCK_WORDS; i++)
		if (kept[i] != words[i])
			return false;
	return true;
}

/* Read and keep the top of the stack; what is known of it is forgotten where it is not as it was. */
__inline void take_top(struct offcpu_window *window, struct offcpu_top *top, u64 sp)
{
	volatile u64 *stale = &top->stale;	/* in memory, or the verifier would follow each set of blocks */
	u32 at, i;

	read_top(window, top, sp);
#pragma clang loop unroll(full)
	for (at = 0; at < TOP_WORDS; at += BLOCK_WORDS)
		if (!is_same_block(&top->words[at], &window->words[at]))
			*stale |= 1ULL << at / BLOCK_WORDS;
	if (!*stale)
		return;
	/* Apart from the above, which is short so. */
#pragma clang loop unroll(full)
	for (at = 0; at < TOP_WORDS; at += BLOCK_WORDS)
		if (*stale & 1ULL << at / BLOCK_WORDS) {
#pragma clang loop unroll(full)
			for (i = at; i < at + BLOCK_WORDS; i++)
				top->words[i] = window->words[i];
		}
}

/* A frame lies beyond what was read: next time it is read with the top, if they are not too far apart. */
__inline void reach_further(struct offcpu_top *top, u64 sp, u64 fp)
{
	u64 bytes = fp + FRAME_BYTES - sp;

	if (bytes <= WINDOW_BYTES && bytes > top->walked)
		top->walked = bytes;
}
#endif

/*
 * Walk the stack of `current`, leaf first; gives the number of frames, 0 if this is not for us. If the stack
 * is not the one that was there before, the hash that was known of it is forgotten.
 */
__inline u32 walk_frames(struct task_struct *current, struct offcpu_stack *stack, struct offcpu_top *top)
{
	void *regs = (void *)bpf_task_pt_regs(current);
	struct offcpu_window *window;
	u64 changed, fp, at;
	u32 zero = 0, i;

	window = windows.lookup(&zero);
	if (!window || FIELD(u64, regs, REGS_CS) != USER_CS)
		return 0;
	window->room = 0;
#if OFFCPU_SUM_CALLERS
	if (top)
		take_top(window, top, FIELD(u64, regs, REGS_SP));
#endif
	fp = FIELD(u64, regs, REGS_FP);
#if OFFCPU_SUM_CALLERS
	/* Most code without frame pointers keeps something else there: no read for that, as the stack will be copied. */
	if (top && fp - FIELD(u64, regs, REGS_SP) >= NEAR_STACK)
		fp = 0;
#endif
	changed = stack->ips[0] ^ FIELD(u64, regs, REGS_IP);
	stack->ips[0] = FIELD(u64, regs, REGS_IP);
#pragma clang loop unroll(disable)
	for (i = 1; i < OFFCPU_FRAME_LIMIT; i++) {
		u64 ip;

		BOUNDED(i);
		if (i >= OFFCPU_FRAMES)
			break;
		at = fp - window->base;
		if (at >= window->room || at & WORD_MASK) {
			if (fp < LOWEST_ADDRESS || fp & WORD_MASK || !read_window(window, fp))
				break;
			at = 0;
#if OFFCPU_SUM_CALLERS
			if (top)
				reach_further(top, FIELD(u64, regs, REGS_SP), fp);
#endif
		}
		at = at / sizeof(u64) & (WINDOW_WORDS - 1);
		fp = window->words[at];
		ip = window->words[at + 1];
		if (!ip)
			break;
		changed |= stack->ips[i] ^ ip;
		stack->ips[i] = ip;
	}
	if (changed || stack->nr != i)
		stack->check = 0;
	return i;
}
#endif
