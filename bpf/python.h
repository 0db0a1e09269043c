/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The Python functions of a thread, for the sample of a wait; user space tells where to read. Each
 * frame becomes a word: 44 bits the id of the code object, a bit for the first frame of a call of
 * the C function that interprets, 19 bits the instruction. The id is a hash of the content, so that
 * an address used again has another: since 3.12 of a unique version, before of texts. Name, file
 * and table of lines go to user space with a file's first wait: the process may end at once.
 */
#pragma once

#include "copies.h"

BPF_TABLE("hash", u32, struct offcpu_python, pythons, OFFCPU_PYTHON ? OFFCPU_PYTHON : 1);
BPF_TABLE("prog", u32, u32, python_program, 1);
BPF_QUEUE(new_codes, struct offcpu_code, OFFCPU_PYTHON ? OFFCPU_NEW_CODES : 1);

#if OFFCPU_PYTHON
#define PYTHON_THREADS (OFFCPU_MAY_GOTO ? 1024 : 128)	/* states of threads that are looked at */
enum { KNOWN_CODES = 1024, ENTRY_SHIFT = 19, CODE_ID_SHIFT, OBJECT_WORDS = 32, CODE_BYTES = 88 };
enum { OBJECT_LENGTH = 2, TEXT_HASH, TEXT_FLAGS, BYTES_DATA = 32 };

struct offcpu_walk {	/* in memory: the verifier knows nothing of it, nor follows branches */
	struct offcpu_python at;
	volatile u64 thread, interpreter, frame, id, file, file_hash;	/* of the last frame */
	volatile u32 nr, unreadable;
	u64 known[KNOWN_CODES];		/* ids described, and in which epoch */
	u64 words[OBJECT_WORDS], code[OBJECT_WORDS], text[8], frames[OFFCPU_PYTHON_FRAMES];
	struct offcpu_code to;
};
BPF_TABLE("lru_hash", u64, u64, codes_seen, OFFCPU_PYTHON_CODES);
BPF_TABLE("percpu_array", u32, struct offcpu_walk, walks, 1);

#define word_at(words, offset) ((words)[(offset) / sizeof(u64) & (OBJECT_WORDS - 1)])
#define frame_at(walk, i) ((walk)->frames[(i) & (OFFCPU_PYTHON_FRAMES - 1)])

static __always_inline u64 user_word(u64 address)
{
	u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)address);
	return word;
}

/* The lesser of a number and a mask, without a branch. */
static __always_inline u64 at_most(u64 number, u64 mask)
{
	number |= sign_of((mask - number) | number);
	barrier_var(number);
	return number & mask;
}

/* The frame that a thread runs, 0 none. */
static __always_inline u64 frame_of(const struct offcpu_python *at, u64 thread)
{
	u64 frame = user_word(thread + at->thread_frame);

	return (frame & at->direct) | (user_word(frame + at->c_frame) & ~at->direct);
}

/* Find a thread's frame. A state without one may be of a child with its parent's pointer. */
static __always_inline void find_frame(const struct offcpu_run *run, struct offcpu_walk *walk)
{
	u64 i, self = FIELD(u64, run->task, TASK_THREAD_POINTER);
	const struct offcpu_python *at = &walk->at;

	walk->thread = run->storage->python_thread;
	walk->frame = self - user_word(walk->thread + at->thread_id) < THREAD_BYTES ?
		      frame_of(at, walk->thread) : 0;
	if (walk->frame)
		return;
	walk->interpreter = at->interpreters - at->next_interpreter;
	walk->thread = 0;
	for_each_round(run->ctl, i, 0, PYTHON_THREADS) {
		if (!walk->thread) {
			walk->interpreter = user_word(walk->interpreter + at->next_interpreter);
			if (!walk->interpreter)
				break;
			walk->thread = user_word(walk->interpreter + at->threads);
			continue;
		}
		if (self - user_word(walk->thread + at->thread_id) < THREAD_BYTES) {
			walk->frame = frame_of(at, walk->thread);
			run->storage->python_thread = walk->thread;
			if (walk->frame)
				break;
		}
		walk->thread = user_word(walk->thread + at->next_thread);
	}
}

/* Read the head of a string, zeros if it cannot be read. Return the number of its bytes. */
static __always_inline u64 read_text(struct offcpu_walk *walk, u64 object)
{
	bpf_probe_read_user(walk->text, sizeof(walk->text), (void *)object);
	return walk->text[OBJECT_LENGTH] * (walk->text[TEXT_FLAGS] >> 2 & 7);
}

static __always_inline void *text_of(const struct offcpu_walk *walk, u64 object)
{
	return (void *)(object + walk->at.compact -
			(walk->text[TEXT_FLAGS] >> 6 & 1) * walk->at.ascii_less);
}

/* Hash the length, the hash and the last bytes of a string. */
static __always_inline u64 hash_text(struct offcpu_walk *walk, u64 object)
{
	u64 tail[2], bytes = read_text(walk, object);

	bpf_probe_read_user(tail, sizeof(tail), text_of(walk, object) + bytes - sizeof(tail));
	return mix(mix(mix(bytes, walk->text[TEXT_HASH]), tail[0]), tail[1]);
}

/* Find the id of the code object that was read. */
static __always_inline void hash_code(const struct offcpu_run *run, struct offcpu_walk *walk)
{
	u64 name = word_at(walk->code, walk->at.name), file = word_at(walk->code, walk->at.file);
	u64 hash = mix(mix(run->ctl->hash_key, run->wait->pid), name);

	walk->to.first_line = word_at(walk->code, walk->at.first_line) >> walk->at.line_shift;
	hash = mix(mix(mix(hash, file), word_at(walk->code, walk->at.lines)), walk->to.first_line);
	if (walk->at.version) {
		hash = mix(hash, word_at(walk->code, walk->at.version));
	} else {
		if (file != walk->file)
			walk->file_hash = hash_text(walk, file);
		walk->file = file;
		hash = mix(mix(hash, walk->file_hash), hash_text(walk, name));
	}
	walk->id = hash >> CODE_ID_SHIFT;
}

/* Copy up to `mask` bytes of a string; return their number, 0 if they cannot be read. */
static __always_inline u32 copy_text(struct offcpu_walk *walk, u64 object, void *to, u64 mask)
{
	u64 bytes = at_most(read_text(walk, object), mask);

	return bytes & ~sign_of(bpf_probe_read_user(to, bytes, text_of(walk, object)));
}

/* Describe the code object that was read to user space, unless that was done for this file. */
static __always_inline void announce_code(const struct offcpu_run *run, struct offcpu_walk *walk)
{
	u64 *seen, id = walk->id, epoch = run->ctl->epoch + 1, lines, bytes;
	u64 *known = &walk->known[id & (KNOWN_CODES - 1)];
	struct offcpu_code *to = &walk->to;

	if (*known == (id ^ epoch << 44) && !run->ctl->copy_all)	/* a tenth of a look-up */
		return;
	*known = id ^ epoch << 44;
	seen = codes_seen.lookup(&id);
	if (seen && *seen >= epoch && !run->ctl->copy_all)
		return;
	to->id = id;
	to->pid = run->wait->pid;
	to->minor = walk->at.minor;
	to->name_size = copy_text(walk, word_at(walk->code, walk->at.name), to->name, 255);
	to->name_flags = walk->text[TEXT_FLAGS];
	to->file_size = copy_text(walk, word_at(walk->code, walk->at.file), to->file, 511);
	to->file_flags = walk->text[TEXT_FLAGS];
	lines = word_at(walk->code, walk->at.lines) + BYTES_DATA;
	read_text(walk, lines - BYTES_DATA);
	bytes = at_most(walk->text[OBJECT_LENGTH], sizeof(to->lines) - 1);
	to->lines_size = bytes & ~sign_of(bpf_probe_read_user(to->lines, bytes, (void *)lines));
	if (!new_codes.push(to, 0))
		codes_seen.update(&id, &epoch);
	else
		*known = 0;		/* the next wait in it tries again */
}

/* Read the Python frames of `current`. */
static __always_inline void walk_python(const struct offcpu_run *run, struct offcpu_walk *walk)
{
	u64 i, size, code, mark, index;

	walk->nr = walk->unreadable = walk->file = 0;
	find_frame(run, walk);
	for_each_round(run->ctl, i, 0, 2 * OFFCPU_PYTHON_FRAMES) {
		if (!walk->frame || walk->nr >= OFFCPU_PYTHON_FRAMES)
			break;
		size = walk->at.frame_size & 127;
		barrier_var(size);
		walk->unreadable = bpf_probe_read_user(walk->words, size, (void *)walk->frame);
		if (walk->unreadable)
			break;
		walk->frame = word_at(walk->words, walk->at.previous);
		mark = word_at(walk->words, walk->at.entry) >> walk->at.entry_shift & 0xff;
		if (mark >= walk->at.least_shim) {
			frame_at(walk, walk->nr - 1) |= 1 << ENTRY_SHIFT;
			continue;
		}
		code = word_at(walk->words, walk->at.code) & ~walk->at.tag;
		walk->unreadable = bpf_probe_read_user(walk->code, CODE_BYTES,
						       (void *)(code + walk->at.code_begin));
		if (walk->unreadable)
			break;
		index = word_at(walk->words, walk->at.instruction) & walk->at.index_mask;
		index -= (code + walk->at.instructions) & walk->at.relative;
		index = at_most(index >> walk->at.unit_shift, (1 << ENTRY_SHIFT) - 1);
		index |= (walk->at.entry_each | (mark & walk->at.entry_marked)) << ENTRY_SHIFT;
		hash_code(run, walk);
		frame_at(walk, walk->nr) = walk->id << CODE_ID_SHIFT | index;
		walk->nr += 1;
		announce_code(run, walk);
	}
	if (walk->unreadable)
		count(OFFCPU_PYTHON_UNREADABLE, run->wait->ns);
}

/* Append the frames of a walk to the sample of a wait. */
static __always_inline void append_walk(struct offcpu_scratch *to, struct offcpu_walk *walk)
{
	u64 nr = walk->nr, end = to->end, from = to->sample.nr + 1;
	struct offcpu_extension *extension;

	asm volatile("" : "+r"(nr), "+r"(end), "+r"(from));	/* as barrier_var() */
	if (nr > OFFCPU_PYTHON_FRAMES || end > SAMPLE_WORDS - OFFCPU_PYTHON_FRAMES ||
	    from > CHAIN_WORDS + 1)
		return;
	extension = (void *)&to->sample.words[from];
	extension->python_offset = (end - from) * sizeof(u64);
	extension->python_nr = nr;
	bpf_probe_read_kernel(&to->sample.words[end], nr * sizeof(u64), walk->frames);
	to->end = end + nr;
}
#endif
