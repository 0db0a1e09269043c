/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Telling callers apart without unwinding, for sums of programs that have no frame pointers.
 *
 * Their chain of frame pointers ends in libc, the same for all callers. What differs are the return addresses
 * on the stack: words that point into code. Of the top of the stack those are hashed that may be one: in the
 * program's own text whatever they are, where libraries are mapped only if malloc() could not have given them
 * (it aligns, code does not). What else lies there, numbers, pointers and time stamps, is left out: it changes
 * from wait to wait. Old return addresses in room that no call has written since do no harm: the same way
 * leads to a few hashes.
 *
 * The first wait of each hash goes out with a copy of its stack, which user space unwinds for all of them.
 */
#if OFFCPU_SUM_CALLERS
#define TOP_WORDS 64			/* 32 do not reach the callers in redis (jemalloc, a buffer on the stack) */
#define TOP_BYTES (TOP_WORDS * sizeof(u64))
#define LIBRARIES (1ULL << 30)		/* below mm->mmap_base, where they are mapped one after the other */
#define MAPPED (1ULL << 40)		/* below it, too: code that was made at run time, among others */
#define NEAR_STACK (8ULL << 20)		/* RLIMIT_STACK as most have it */
#define WORD_MASK (sizeof(u64) - 1)

BPF_TABLE("lru_hash", u64, u64, snapshots, OFFCPU_CALLERS);	/* the epoch in which one of this hash was sent */

/* Copy the top of the user stack of `current`; what cannot be read is 0, as the helper leaves it. */
__inline void read_top(struct offcpu_window *window, u64 sp)
{
	u64 bytes = PAGE - (sp & (PAGE - 1));

	if (!bpf_probe_read_user(window->words, TOP_BYTES, (void *)sp))
		return;
	/* Where the mapping ends, all of it fails. */
	BOUNDED(bytes);
	if (bytes < TOP_BYTES)
		bpf_probe_read_user(window->words, bytes, (void *)sp);
}

/* Where a task's code may be. */
struct offcpu_layout {
	u64 code;			/* its program's text */
	u64 code_size;
	u64 top;			/* of what is mapped: libraries come first */
	u64 sp;
};

/* Whether a word may be a return address into the program's text, or into what was mapped up to `span` below. */
__inline bool may_return(const struct offcpu_layout *at, u64 word, u64 span)
{
	if (word - at->code < at->code_size)
		return true;
	if (word - (at->top - span) >= span || !(word & WORD_MASK))
		return false;
	return word - at->sp + NEAR_STACK >= 2 * NEAR_STACK;
}

__inline u64 mix(u64 hash, u64 word)
{
	hash = (hash ^ word) * 0xff51afd7ed558ccdULL;
	return hash ^ hash >> 32;
}

/* A hash of a chain of frame pointers, without the words in it that are no code: they change like any data. */
__inline u64 hash_chain(const struct offcpu_layout *at, struct offcpu_stack *stack)
{
	u64 hash = 1;
	u32 i;

#pragma clang loop unroll(disable)
	for (i = 1; i < OFFCPU_FRAMES; i++) {
		BOUNDED(i);
		if (i >= OFFCPU_FRAMES || i >= stack->nr)
			break;
		if (may_return(at, stack->ips[i], MAPPED))
			hash = mix(hash, stack->ips[i]);
	}
	return hash;
}

/* A hash of where `current` waits and of who called that, the same for all threads; 0 if this is not for us. */
__inline u64 hash_callers(struct offcpu_wait *wait)
{
	struct offcpu_task *storage = wait->storage;
	struct task_struct *task = wait->task;
	struct offcpu_window *window;
	struct offcpu_layout at;
	u32 zero = 0, i;
	void *regs, *mm;
	u64 hash;

	if (OFFCPU_KERNEL_THREADS && FIELD(u32, task, TASK_FLAGS) & PF_KTHREAD)
		return 0;
	window = windows.lookup(&zero);
	regs = (void *)bpf_task_pt_regs(task);
	mm = FIELD(void *, task, TASK_MM);
	if (!window || !mm || FIELD(u64, regs, REGS_CS) != USER_CS)
		return 0;
	at.code = FIELD(u64, mm, MM_START_CODE);
	at.code_size = FIELD(u64, mm, MM_END_CODE) - at.code;
	at.top = FIELD(u64, mm, MM_MMAP_BASE);
	at.sp = FIELD(u64, regs, REGS_SP);
	/* The chain is often the one that was there before. */
	if (!wait->user->check || !storage->kept_hash) {
		storage->kept_hash = hash_chain(&at, wait->user);
		wait->user->check = 1;
	}
	/* Forks have the same addresses, other programs have not. A thread's stack ends near its thread pointer. */
	hash = mix(storage->kept_hash, at.code ^ at.top ^ at.code_size << 20);
	hash = mix(hash, FIELD(u64, regs, REGS_IP) ^ (FIELD(u64, task, TASK_THREAD_POINTER) - at.sp) << 16);
	read_top(window, at.sp);
	/* Unrolled it takes half the time. */
#pragma clang loop unroll(full)
	for (i = 0; i < TOP_WORDS; i++)
		if (may_return(&at, window->words[i], LIBRARIES))
			hash = mix(hash, window->words[i]);
	return hash ? hash : 1;
}

/* Whether no copy of such a stack was sent since the present file began. */
__inline bool is_first(u64 caller)
{
	struct offcpu_control *switches = enabled();
	u64 *sent = snapshots.lookup(&caller);

	return switches && (!sent || *sent < switches->epoch);
}

__inline void note_sent(u64 caller)
{
	struct offcpu_control *switches = enabled();

	if (switches)
		snapshots.update(&caller, &switches->epoch);
}
#endif
