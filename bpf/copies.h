/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How much of the user stack a sample copies, and whether at all. The perf core makes the copy,
 * with the size of the event. So several events write to one ring:
 *
 *	the end of the stack is known		a quarter of control.copy_bytes, all, double or
 *						four times, whichever reaches the end
 *	it is not known (goroutines)		control.copy_bytes
 *	a stack that was copied before		one word, and the hash of the stack
 *	more than control.copy_budget a second	a quarter, above the double one word
 *
 * The stack of a main thread ends at mm->start_stack, that of other threads below the thread
 * pointer, where libc puts their descriptor.
 * The hash is that of all words of the copy that may be return addresses: other data changes from
 * wait to wait. Stacks with one hash have the same callers, except for calls in libraries whose
 * return address is a multiple of 8, as are most pointers that are no code.
 *
 * Pointers into data that are no multiple of 8 change, too. So for a new hash only words after a
 * call instruction count for the number of the stack, by which samples refer to it.
 *
 * The return addresses of HotSpot's interpreter are those of any method, so of a process in `jvms`
 * the addresses of methods in its frames count as well. unwind/step.py has the same conditions.
 * Before Linux 6.9 the loop over a stack's words would be too much for the verifier (loops.h).
 */
#pragma once

#include "arguments.h"

BPF_TABLE("hash", u32, u32, jvms, OFFCPU_JVMS ? OFFCPU_JVMS : 1);	/* pids */

#define LIBRARIES (1ULL << 30)		/* libraries are mapped this near below mm->mmap_base */
#define MAPPED (1ULL << 40)		/* and other code, generated at run time, this near */
#define MOST_COPIED (32ULL << 10)	/* LARGEST_COPY in perf_offcpu/abi/offcpu.py */
#define PIECE_WORDS 128			/* read at once */
#define PIECE_BYTES (PIECE_WORDS * sizeof(u64))
#define CODE_WORDS 256			/* a power of two */
#define SLACK 64			/* what the outermost frame may have beyond the end */
#define FRAME_WORDS 8			/* of an interpreted method, below its return address */
#define MOST_LOCALS 16384		/* bytes of a method's variables */

struct offcpu_piece {
	volatile u64 from, left;	/* address, bytes from it on; in memory, as offcpu_wait */
	u64 before[FRAME_WORDS];	/* the last words of the piece before */
	u64 words[2 * PIECE_WORDS];	/* for the verifier, which only knows of the mask */
	u64 methods;			/* hash of interpreted methods, and a JVM's pid */
	volatile u64 nr;		/* of words that may be return addresses */
	u64 code[CODE_WORDS];		/* these words, the last ones if they are more */
};

/* A stack that was copied before. */
struct offcpu_known {
	u64 epoch, number;	/* in which it was copied last; in samples that refer to it */
};

/* By number, and by hash of all words that may be return addresses. */
BPF_TABLE("lru_hash", u64, struct offcpu_known, snapshots, OFFCPU_CALLERS);
BPF_TABLE("percpu_array", u32, struct offcpu_piece, pieces, 1);

/* Whether a word may be a return address into the program's text or the `span` below mmap_base. */
static __always_inline bool may_return(const struct offcpu_layout *at, u64 word, u64 span)
{
	if (word - at->code < at->code_size)
		return true;
	if (word - (at->top - span) >= span || !(word & (ALIGNED - 1)))
		return false;
	return word - at->sp + NEAR_STACK >= 2 * NEAR_STACK;
}

/* Hash a chain of frame pointers, without the words in it that are no code addresses. */
static __always_inline u64 hash_chain(const struct offcpu_run *run, const struct offcpu_layout *at)
{
	u64 hash = seed_of(run->ctl, run->task), i;

	for_each_round(run->ctl, i, 1, OFFCPU_FRAMES) {
		if (i >= run->user->nr)
			break;
		if (may_return(at, run->user->ips[i], MAPPED))
			hash = mix(hash, run->user->ips[i]);
	}
	return hash;
}

/* The memory of `current`, and where its code and stack are; NULL if it is not in 64-bit mode. */
static __always_inline void *find_layout(struct task_struct *task, void *regs,
					 struct offcpu_layout *at)
{
	void *mm = POINTER(task, TASK_MM);

	if (!mm || !is_64_bit(regs))
		return NULL;
	at->code = FIELD(u64, mm, MM_START_CODE);
	at->code_size = FIELD(u64, mm, MM_END_CODE) - at->code;
	at->top = FIELD(u64, mm, MM_MMAP_BASE);
	at->sp = FIELD(u64, regs, REGS_SP);
	at->thread = FIELD(u64, task, TASK_THREAD_POINTER);
	/* Addresses are those of a program and its forks. */
	at->key = at->code ^ at->top ^ at->code_size << 20;
	if (REGS_LINK)
		at->key ^= (FIELD(u64, regs, REGS_LINK) & CODE_MASK) * HASH_MULTIPLIER;
	return mm;
}

/* Whether no stack of this hash was copied since the output file began. */
static __always_inline bool is_first(const struct offcpu_control *ctl, u64 caller)
{
	struct offcpu_known *known = snapshots.lookup(&caller);

	return !known || known->epoch < ctl->epoch;
}

/* Note that the stack of a hash has a number. */
static __always_inline void note_known(const struct offcpu_control *ctl, u64 hash, u64 number)
{
	struct offcpu_known known = {ctl->epoch, number};

	snapshots.update(&hash, &known);
}

/* Where a user stack ends, 0 if that is not known. */
static __always_inline u64 stack_end(struct task_struct *task, void *mm, u64 sp)
{
	u64 end = FIELD(u64, mm, MM_START_STACK);

	if (end - sp >= NEAR_STACK)
		end = FIELD(u64, task, TASK_THREAD_POINTER);
	return end - sp < NEAR_STACK ? end : 0;
}

/* Choose the size of the copy. Set the number of bytes up to the end of the stack or the copy. */
static __always_inline u32 choose_copy(const struct offcpu_control *ctl,
				       struct task_struct *task, void *mm, u64 sp, u64 *bytes)
{
	u64 end = stack_end(task, mm, sp), first = ctl->copy_bytes;

	*bytes = end ? min(end - sp, MOST_COPIED) : min(first, MOST_COPIED);
	if (!end)
		return OFFCPU_COPY_FIRST;
	end += SLACK - sp;
	if (end <= first)
		return end <= first / 4 ? OFFCPU_COPY_QUARTER : OFFCPU_COPY_FIRST;
	*bytes = min(*bytes, 4 * first);
	return end <= 2 * first ? OFFCPU_COPY_DOUBLE : OFFCPU_COPY_FOURFOLD;
}

/*
 * Hash words that may be return addresses: into the program's text, or, unless they are aligned,
 * near mmap_base (above it where the size of the stack has no limit), and keep them. A verifier
 * follows at most 8192 branches in a row, so there are none: ~x & (x - n) has the top bit if x < n.
 */
static __always_inline u64 hash_words(const struct offcpu_layout *at, struct offcpu_piece *piece,
				      const u64 *words, u64 hash)
{
	u64 word, text, mapped, is_code, nr = piece->nr;
	u32 i;

	for_unrolled(i, BLOCK_WORDS) {
		word = words[i] & CODE_MASK;
		text = word - at->code;
		mapped = word - (at->top - MAPPED);
		is_code = ~text & (text - at->code_size);
		is_code |= ~mapped & (mapped - 2 * MAPPED) & -(word & (ALIGNED - 1));
		hash = (hash + (word & (u64)((s64)is_code >> 63))) * HASH_MULTIPLIER;
		piece->code[nr & (CODE_WORDS - 1)] = word;
		nr += is_code >> 63;
	}
	piece->nr = nr;
	return hash;
}

/* 1 if a is b, else 0, without a branch; both are less than 2^63. */
static __always_inline u64 is_equal(u64 a, u64 b)
{
	return ((a ^ b) - 1) >> 63;
}

/* 1 if the byte at `bit` of 8 bytes of code begins an indirect call: 0xff, ModRM with /2. */
static __always_inline u64 calls_indirectly(u64 code, u32 bit)
{
	return is_equal(code >> bit & 0x38ff, 0x10ff);
}

/* 1 if 8 bytes of code end with a call. Of arm64: bl, or blr, blraa and their like. */
static __always_inline u64 ends_with_call(u64 code)
{
	if (OFFCPU_ARM64)
		return is_equal(code >> 58, 0x25) | is_equal(code >> 32 & 0xfefff000, 0xd63f0000);
	return is_equal(code >> 24 & 0xff, 0xe8) | calls_indirectly(code, 8) |
	       calls_indirectly(code, 16) | calls_indirectly(code, 32) |
	       calls_indirectly(code, 40) | calls_indirectly(code, 48);
}

/*
 * Hash those words kept by hash_words() that follow a call instruction. (If memory cannot be read,
 * the code is 0.) If they were too many, return the hash of all.
 */
static __always_inline u64 hash_callers_of(const struct offcpu_control *ctl, u64 hash, u64 of_all)
{
	struct offcpu_piece *piece = pieces.lookup(ONLY_KEY);
	u64 i, word, code, follows;

	if (!piece || piece->nr > CODE_WORDS)
		return of_all;
	hash = mix(hash, piece->methods);
	for_each_round(ctl, i, 0, CODE_WORDS) {
		if (i >= piece->nr)
			break;
		word = piece->code[i & (CODE_WORDS - 1)];
		bpf_probe_read_user(&code, sizeof(code), (void *)(word - sizeof(code)));
		follows = ends_with_call(code);
		hash = (hash + (word & -follows)) * (HASH_MULTIPLIER & -follows | 1);
		hash ^= hash >> 32;
	}
	return hash ? hash : 1;
}

/*
 * Whether words are the frame of an interpreted method (interpreter_frame_*_offset in frame_x86.hpp
 * of HotSpot), with its return address at `end`: the place of its variables (since JDK 21 from the
 * frame pointer on, in words), its constants, 2 others, the method, 1 other, the caller's stack
 * pointer and frame pointer, the return address. Constants and method are not in `bytes` of stack.
 */
static __always_inline bool is_interpreted(const struct offcpu_layout *at, u64 bytes,
					   const u64 *frame, u64 end)
{
	return (frame[0] < MOST_LOCALS || frame[0] - end < MOST_LOCALS) &&
	       frame[1] >= LOWEST_ADDRESS && frame[1] - at->sp >= bytes &&
	       frame[4] >= LOWEST_ADDRESS && frame[4] - at->sp >= bytes &&
	       frame[6] - end < MOST_LOCALS && frame[8] - (at->top - MAPPED) < 2 * MAPPED &&
	       !((frame[1] | frame[4] | frame[6]) & WORD_MASK);
}

/* Hash the methods of interpreted frames whose return address is in a piece of the stack. */
static __always_inline void hash_methods(const struct offcpu_control *ctl,
					 const struct offcpu_layout *at, u64 bytes,
					 struct offcpu_piece *piece, u64 from, u64 size)
{
	const u64 *frame;
	u64 i;

	for_each_round(ctl, i, 0, PIECE_WORDS) {
		frame = &piece->before[i & (PIECE_WORDS - 1)];
		if (is_interpreted(at, bytes, frame, from + i * sizeof(u64)))
			piece->methods = mix(piece->methods, frame[4]);
	}
	for_unrolled(i, FRAME_WORDS)
		piece->before[i] = piece->words[(size / sizeof(u64) - FRAME_WORDS + i) &
						(2 * PIECE_WORDS - 1)];
}

/*
 * Hash `bytes` bytes from the stack pointer on, or up to the end of the mapping, as the copy does;
 * 0 if none can be read. A piece ends at a multiple of its size, so that it lies in one page.
 */
static __always_inline u64 hash_bytes(const struct offcpu_control *ctl,
				      const struct offcpu_layout *at, u32 pid, u64 bytes, u64 hash)
{
	bool is_jvm = OFFCPU_JVMS && OFFCPU_MAY_GOTO && jvms.lookup(&pid);
	struct offcpu_piece *piece = pieces.lookup(ONLY_KEY);
	u64 i, from, size, more;
	u32 block;

	if (!piece)
		return 0;
	piece->from = at->sp;
	piece->left = bytes;
	piece->nr = 0;
	piece->methods = is_jvm ? pid : 0;
	__builtin_memset(piece->before, 0, sizeof(piece->before));
	for_each_round(ctl, i, 0, MOST_COPIED / PIECE_BYTES + 1) {
		if (!piece->left)
			break;
		from = piece->from;
		size = PIECE_BYTES - (from & (PIECE_BYTES - 1));
		/* The lesser of both, without a branch for the verifier to follow. */
		more = piece->left - size;
		size += more & sign_of(more);
		size &= 2 * PIECE_BYTES - 1;
		barrier_var(size);
		__builtin_memset(piece->words, 0, PIECE_BYTES);
		if (bpf_probe_read_user(piece->words, size, (void *)from))
			break;
		piece->left -= size;
		piece->from = from + size;
#pragma clang loop unroll(disable)
		for (block = 0; block < PIECE_WORDS; block += BLOCK_WORDS)
			hash = hash_words(at, piece, &piece->words[block], hash);
		hash ^= hash >> 32;
		if (is_jvm)
			hash_methods(ctl, at, bytes, piece, from, size);
	}
	if (piece->left == bytes)
		return 0;
	hash = mix(hash, piece->methods);
	return hash ? hash : 1;
}

/*
 * Take a new copy from the budget of the second. Above it a sample has a short copy, which no other
 * refers to. Above its double, and for sums, no copy is made: another second or file may have room.
 */
static __always_inline void spend_copy(const struct offcpu_run *run, u64 bytes)
{
	u64 budget = run->ctl->copy_budget, now = run->wait->switch_in_ns;
	struct offcpu_wait *wait = run->wait;
	struct offcpu_rate *limit = rate.lookup(ONLY_KEY);

	if (!limit)
		return;
	if (now - limit->copies_ns >= NS_PER_S) {
		limit->copies_ns = now;
		limit->copied = 0;
	}
	if (limit->copied > budget &&
	    (wait->copy != OFFCPU_COPY_QUARTER || limit->copied > 2 * budget)) {
		count(OFFCPU_COPIES_LIMITED, wait->ns);
		wait->copy = OFFCPU_COPY_BARE;
		if (is_sum(wait))	/* or its next wait would be sent, too */
			note_known(run->ctl, wait->caller, wait->caller);
		if (!wait->sampled || limit->copied > 2 * budget)
			return;
		wait->copy = OFFCPU_COPY_QUARTER;
		wait->copied = 0;
		bytes = run->ctl->copy_bytes / 4;
	}
	__sync_fetch_and_add(&limit->copied, bytes);
}

/*
 * Decide on the copy of the stack of `current` in the sample of a wait: its size, and the hash by
 * which a later wait refers to it. Kernel threads have none.
 */
static __always_inline void plan_copy(const struct offcpu_run *run)
{
	const struct offcpu_control *ctl = run->ctl;
	struct task_struct *task = run->task;
	struct offcpu_wait *wait = run->wait;
	struct offcpu_layout at;
	struct offcpu_known *known;
	u64 bytes, hash, stack, fp;
	void *regs, *mm;

	if (!ctl->copy_bytes || is_kernel_thread(task))
		return;
	regs = (void *)bpf_task_pt_regs(task);
	mm = find_layout(task, regs, &at);
	if (!mm)
		return;
	wait->copy = choose_copy(ctl, task, mm, at.sp, &bytes);
	if (is_sum(wait)) {
		wait->copied = wait->caller;
		spend_copy(run, bytes);
		return;
	}
	stack = mix(mix(mix(seed_of(ctl, task), at.key), FIELD(u64, regs, REGS_IP)), bytes);
	fp = FIELD(u64, regs, REGS_FP) - at.sp;
	hash = mix(mix(hash_chain(run, &at), stack), fp < NEAR_STACK ? fp : 0);
	hash = hash_bytes(ctl, &at, wait->pid, bytes, hash);
	wait->hash = wait->copied = hash;
	if (!hash)
		return;
	known = snapshots.lookup(&hash);
	if (known && known->epoch == ctl->epoch) {
		wait->copied = known->number;
		if (!ctl->copy_all)
			wait->copy = OFFCPU_COPY_BARE;
		return;
	}
	wait->copied = hash_callers_of(ctl, stack, hash);
	if (ctl->copy_all)
		return;
	if (is_first(ctl, wait->copied)) {
		spend_copy(run, bytes);
		return;
	}
	wait->copy = OFFCPU_COPY_BARE;
	note_known(ctl, hash, wait->copied);
}
