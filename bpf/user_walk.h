/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * User stacks along frame pointers, read by windows.
 *
 * The kernel's own walk (bpf_get_stack: perf_callchain_user() in arch/x86/events/core.c) reads each frame by
 * itself, some 35 ns, and goes on until one cannot be read. That ends nearly every walk, because the last
 * frame pointer is 0 or was used for something else, and that page fault costs more than all the rest: some
 * 600 ns. Here up to 1 KB of stack is read at once and frames are taken from it, and what cannot be a frame
 * is not tried. (A read costs some 50 ns whatever its size: with 512 bytes it took two where one does.) The frames are the same.
 *
 * Only where user space saw to OFFCPU_FRAME_POINTERS: x86-64, and there for tasks in 64-bit mode.
 */
#define USER_CS 0x33			/* __USER_CS, arch/x86/include/asm/segment.h */
#define LOWEST_ADDRESS 4096		/* nothing is mapped below, see mmap_min_addr */
#define PAGE 4096
#define FRAME_BYTES 16			/* the caller's frame pointer, the return address */
#define WINDOW_WORDS 128
#define WINDOW_BYTES (WINDOW_WORDS * sizeof(u64))

#if OFFCPU_FRAME_POINTERS
struct offcpu_window {
	u64 words[WINDOW_WORDS + 1];	/* a frame may begin in the last one, as far as the verifier knows */
};

BPF_TABLE("percpu_array", u32, struct offcpu_window, windows, 1);

/* How much to read at once: never into a page that the frame itself does not lie in. */
__inline u64 window_bytes(u64 fp)
{
	u64 bytes = PAGE - (fp & (PAGE - 1));

	BOUNDED(bytes);
	if (bytes > WINDOW_BYTES)
		return WINDOW_BYTES;
	return bytes < FRAME_BYTES ? FRAME_BYTES : bytes;
}

/*
 * Walk the stack of `current`, leaf first; gives the number of frames, 0 if this is not for us. If the stack
 * is not the one that was there before, the hash that was known of it is forgotten.
 */
__inline u32 walk_frames(struct task_struct *current, struct offcpu_stack *stack)
{
	void *regs = (void *)bpf_task_pt_regs(current);
	u64 base = 0, bytes = 0, changed, fp, at;
	struct offcpu_window *window;
	u32 zero = 0, i;

	window = windows.lookup(&zero);
	if (!window || FIELD(u64, regs, REGS_CS) != USER_CS)
		return 0;
	fp = FIELD(u64, regs, REGS_FP);
	changed = stack->ips[0] ^ FIELD(u64, regs, REGS_IP);
	stack->ips[0] = FIELD(u64, regs, REGS_IP);
#pragma clang loop unroll(disable)
	for (i = 1; i < OFFCPU_FRAME_LIMIT; i++) {
		u64 ip;

		BOUNDED(i);
		if (i >= OFFCPU_FRAMES)
			break;
		at = fp - base;
		if (at + FRAME_BYTES > bytes || fp < base) {
			if (fp < LOWEST_ADDRESS || fp & (sizeof(u64) - 1))
				break;
			bytes = window_bytes(fp);
			if (bpf_probe_read_user(window->words, bytes, (void *)fp))
				break;
			base = fp;
			at = 0;
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
