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
 * A thread that waits where it waited often has the same words there, or most of them. That is seen at less cost
 * than the hash is worked out: the words are kept, and compared one by one. Where eight in a row are as they were, so
 * is their part of the hash.
 *
 * The first wait of each hash goes out with a copy of its stack, which user space unwinds for all of them.
 */
#if OFFCPU_SUM_CALLERS
#define LIBRARIES (1ULL << 30)		/* below mm->mmap_base, where they are mapped one after the other */
#define MAPPED (1ULL << 40)		/* below it, too: code that was made at run time, among others */

BPF_TABLE("lru_hash", u64, u64, snapshots, OFFCPU_CALLERS);	/* the epoch in which one of this hash was sent */

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

/* Where the code of `current` may be. */
__inline struct offcpu_layout layout_of(struct task_struct *task, void *mm, u64 sp)
{
	struct offcpu_layout at = {
		.code = FIELD(u64, mm, MM_START_CODE),
		.code_size = FIELD(u64, mm, MM_END_CODE) - FIELD(u64, mm, MM_START_CODE),
		.top = FIELD(u64, mm, MM_MMAP_BASE),
		.sp = sp,
		.thread = FIELD(u64, task, TASK_THREAD_POINTER),
	};

	return at;
}

__inline bool is_same(const struct offcpu_layout *one, const struct offcpu_layout *other)
{
	return !(one->code ^ other->code | one->code_size ^ other->code_size | one->top ^ other->top |
		 one->sp ^ other->sp | one->thread ^ other->thread);
}

/* A hash of those of some words that may be return addresses. */
__inline u64 hash_block(const struct offcpu_layout *at, const u64 *words)
{
	u64 hash = 0;
	u32 i;

	/* Unrolled it takes half the time. */
#pragma clang loop unroll(full)
	for (i = 0; i < BLOCK_WORDS; i++)
		if (may_return(at, words[i], LIBRARIES))
			hash = mix(hash, words[i]);
	return hash;
}

/* Work out the hash of a chain, a layout and the top of a stack anew, as far as they have changed. */
__inline void hash_top(struct offcpu_top *top, const struct offcpu_layout *at, struct offcpu_stack *stack)
{
	volatile u64 *stale = &top->stale;	/* in memory, or the verifier would follow each set of blocks */
	u64 hash;
	u32 block;

	if (!is_same(&top->layout, at)) {
		top->layout = *at;
		top->chain = 0;
		top->stale = ALL_BLOCKS;
	}
	if (!stack->check || !top->chain) {
		top->chain = hash_chain(at, stack);
		stack->check = 1;
	}
	/* Forks have the same addresses, other programs have not. A thread's stack ends near its thread pointer. */
	hash = mix(*(volatile u64 *)&top->chain, at->code ^ at->top ^ at->code_size << 20);
	hash = mix(hash, stack->ips[0] ^ (at->thread - at->sp) << 16);
#pragma clang loop unroll(full)
	for (block = 0; block < TOP_BLOCKS; block++) {
		if (*stale & 1ULL << block)
			top->hashes[block] = hash_block(at, &top->words[block * BLOCK_WORDS]);
		if (top->hashes[block])
			hash = mix(hash, top->hashes[block]);
	}
	top->stale = 0;
	top->caller = hash ? hash : 1;
}

/* A hash of where `current` waits and of who called that, the same for all threads; 0 if this is not for us. */
__inline u64 hash_callers(struct offcpu_wait *wait)
{
	struct task_struct *task = wait->task;
	struct offcpu_top *top = &wait->storage->top;
	struct offcpu_layout at;
	void *regs, *mm;

	if (OFFCPU_KERNEL_THREADS && FIELD(u32, task, TASK_FLAGS) & PF_KTHREAD)
		return 0;
	regs = (void *)bpf_task_pt_regs(task);
	mm = FIELD(void *, task, TASK_MM);
	if (!mm || FIELD(u64, regs, REGS_CS) != USER_CS)
		return 0;
	at = layout_of(task, mm, FIELD(u64, regs, REGS_SP));
	if (top->stale || !wait->user->check || !top->caller || !is_same(&top->layout, &at))
		hash_top(top, &at, wait->user);
	return *(volatile u64 *)&top->caller;	/* both ways lead on as one, to the verifier */
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
