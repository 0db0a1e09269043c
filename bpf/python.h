/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The Python functions of a thread; user space tells where to read. A frame becomes a word: 44 bits
 * the id of the code object, a bit for the first frame of a call of the C function that interprets,
 * 19 bits the instruction. The id is a hash of a unique version, before 3.12 of texts, because
 * addresses are used again. A file's first wait sends name, file and lines: the process may end.
 */
#pragma once

#include "copies.h"

BPF_TABLE("hash", u32, struct offcpu_python, pythons, OFFCPU_PYTHON ? OFFCPU_PYTHON : 1);
BPF_TABLE("prog", u32, u32, python_program, 1);
BPF_QUEUE(new_codes, struct offcpu_code, OFFCPU_PYTHON ? OFFCPU_NEW_CODES : 1);

#if OFFCPU_PYTHON
#define PYTHON_ROUNDS (OFFCPU_PYTHON_FRAMES + (OFFCPU_MAY_GOTO ? OFFCPU_PYTHON_FRAMES : 64))
#define PYTHON_THREADS (OFFCPU_MAY_GOTO ? 1024 : 128)	/* states of threads that are looked at */
enum { KNOWN_OBJECTS = 512, ENTRY_SHIFT = 19, CODE_ID_SHIFT, OBJECT_WORDS = 32 };
enum { OBJECT_LENGTH = 2, TEXT_HASH, TEXT_FLAGS, BYTES_LENGTH = 16, BYTES_DATA = 32 };
enum { VIEW_WORDS = 512, VIEW_ROOM = 2047, TEXT_HEAD = 40, TEXT_BYTES = 256, CODE_BYTES = 168 };

struct offcpu_walk {	/* in memory: the verifier knows nothing of it, nor follows branches */
	struct offcpu_python at;
	volatile u64 thread, interpreter, frame, room, from, stamp;	/* from, room: of `view` */
	volatile u32 nr, unreadable, is_locked;
	struct offcpu_python_object {	/* code, file name: the frames of a walk keep them */
		u64 stamp, hash, described;	/* id of described code, and in which epoch */
	} known[KNOWN_OBJECTS];
	u64 view[VIEW_WORDS], code[OBJECT_WORDS], text[TEXT_BYTES / sizeof(u64) + 1];
	struct offcpu_code to;
	struct {		/* a payload without a callchain: names for an on-CPU sample */
		u32 pid, tid;
		u64 offcpu_ns, nr, cgroup;
		struct offcpu_extension extension;
	} note;
	u64 frames[OFFCPU_PYTHON_FRAMES];	/* part of the note */
};
BPF_TABLE("lru_hash", u64, u64, codes_seen, OFFCPU_PYTHON_CODES);
/* The second is that of on-CPU samples, which interrupt other programs. */
BPF_TABLE("percpu_array", u32, struct offcpu_walk, walks, 2);

#define word_at(words, offset) ((words)[(offset) / sizeof(u64) & (OBJECT_WORDS - 1)])
#define view_at(walk, offset)                                                                      \
	((walk)->view[((walk)->frame - (walk)->from + (offset)) / sizeof(u64) & (VIEW_WORDS - 1)])
#define text_begin(walk)                                                                           \
	((walk)->at.compact - ((walk)->text[TEXT_FLAGS] >> 6 & 1) * (walk)->at.ascii_less)
#define text_bytes(walk) ((walk)->text[OBJECT_LENGTH] * ((walk)->text[TEXT_FLAGS] >> 2 & 7))
#define known_of(walk, object) (&(walk)->known[(object) * HASH_MULTIPLIER >> 55])
#define frame_at(walk, i) ((walk)->frames[(i) & (OFFCPU_PYTHON_FRAMES - 1)])

/* The lesser of a number and a mask, without a branch. */
static __always_inline u64 at_most(u64 number, u64 mask)
{
	number |= sign_of((mask - number) | number);
	barrier_var(number);
	return number & mask;
}

/* Read the state of a thread. Return the frame that it runs, 0 none, or if `self` is not its id. */
static __always_inline u64 frame_of(struct offcpu_walk *walk, u64 self)
{
	u64 frame;

	bpf_probe_read_user(walk->code, sizeof(walk->code), (void *)walk->thread);
	frame = word_at(walk->code, walk->at.thread_frame);
	if (self - word_at(walk->code, walk->at.thread_id) >= THREAD_BYTES)
		return 0;
	return walk->at.direct ? frame : user_word(NULL, frame + walk->at.c_frame);
}

/* Find a thread's frame. A state without one may be of a child with its parent's pointer. */
static __always_inline void find_frame(const struct offcpu_run *run, struct offcpu_walk *walk)
{
	u64 i, self = FIELD(u64, run->task, TASK_THREAD_POINTER);
	u64 head = walk->at.interpreters - walk->at.next_interpreter;

	walk->thread = run->storage->python_thread;
	walk->interpreter = head;
	for_each_round(run->ctl, i, 0, PYTHON_THREADS) {
		walk->frame = frame_of(walk, self);
		if (walk->frame)
			break;
		walk->thread = word_at(walk->code, walk->at.next_thread);
		if (walk->thread && walk->interpreter != head)
			continue;
		walk->interpreter = user_word(NULL, walk->interpreter + walk->at.next_interpreter);
		if (!walk->interpreter)
			break;
		walk->thread = user_word(NULL, walk->interpreter + walk->at.threads);
	}
	run->storage->python_thread = walk->thread;
}

/* Have the frame, with callers below it in its page, in `view`: a read costs the same. 0: done. */
static __always_inline u32 view_frame(struct offcpu_walk *walk)
{
	u64 size = walk->at.frame_size & 127;

	if (walk->frame - walk->from <= walk->room)
		return 0;
	walk->room = at_most(walk->frame & 4095, VIEW_ROOM) & ~7ULL;
	walk->from = walk->frame - walk->room;
	size = (size + walk->room) & (sizeof(walk->view) - 1);
	barrier_var(size);
	return walk->unreadable = bpf_probe_read_user(walk->view, size, (void *)walk->from);
}

/* Read a string's begin, less where its mapping ends. Return the number of its bytes. */
static __always_inline u64 read_text(struct offcpu_walk *walk, u64 object)
{
	if (bpf_probe_read_user(walk->text, TEXT_BYTES, (void *)object)) {
		bpf_probe_read_user(walk->text, TEXT_HEAD, (void *)object);
		bpf_probe_read_user(walk->text, at_most(text_begin(walk) + text_bytes(walk),
							TEXT_BYTES - 1), (void *)object);
	}
	return text_bytes(walk);
}

/* Hash a string: length and hash; without a hash, 80 bytes, last 16 of 127, last 8 of more. */
static __always_inline u64 hash_text(struct offcpu_walk *walk, u64 object)
{
	u64 bytes = read_text(walk, object), hash = mix(bytes, walk->text[TEXT_HASH]);
	u64 i, less, begin = text_begin(walk), last = at_most(bytes, 127) - sizeof(u64);

	if (~walk->text[TEXT_HASH])
		return hash;
#pragma unroll
	for (i = 0; i < 96; i += sizeof(u64)) {	/* words overlap at the end */
		less = begin + (i < 80 ? i + (last - i & sign_of(last - i)) : last - 88 + i);
		hash = mix(hash, *(u64 *)((u8 *)walk->text + (less & TEXT_BYTES - 1)));
	}
	return bytes > 127 ? mix(hash, user_word(NULL, object + begin + bytes - sizeof(u64))) :
			     hash;
}

/* Return the id of the code object that was read. */
static __always_inline u64 hash_code(const struct offcpu_run *run, struct offcpu_walk *walk)
{
	u64 name = word_at(walk->code, walk->at.name), file = word_at(walk->code, walk->at.file);
	u64 hash = mix(mix(mix(run->ctl->hash_key, run->wait->pid), name), file);
	struct offcpu_python_object *known = known_of(walk, file);

	walk->to.first_line = word_at(walk->code, walk->at.first_line) >> walk->at.line_shift;
	hash = mix(mix(hash, word_at(walk->code, walk->at.lines)), walk->to.first_line);
	if (walk->at.version)
		return mix(hash, word_at(walk->code, walk->at.version)) >> CODE_ID_SHIFT;
	if (known->stamp != (walk->stamp ^ file))
		known->hash = hash_text(walk, file);
	known->stamp = walk->stamp ^ file;
	return mix(mix(hash, known->hash), hash_text(walk, name)) >> CODE_ID_SHIFT;
}

/* Copy up to `mask` bytes of a string; return their number, 0 if they cannot be read. */
static __always_inline u32 copy_text(struct offcpu_walk *walk, u64 object, void *to, u64 mask)
{
	u64 bytes = at_most(read_text(walk, object), mask);

	return bytes & ~sign_of(bpf_probe_read_user(to, bytes, (void *)object + text_begin(walk)));
}

/* Describe the code object that was read to user space, unless that was done for this file. */
static __always_inline void announce_code(const struct offcpu_run *run, struct offcpu_walk *walk,
					  struct offcpu_python_object *known)
{
	u64 *seen, id = known->hash, epoch = run->ctl->epoch + 1, lines, bytes;
	struct offcpu_code *to = &walk->to;

	if (known->described == (id ^ epoch << 44) && !run->ctl->copy_all)
		return;
	known->described = id ^ epoch << 44;
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
	bytes = at_most(user_word(NULL, lines - BYTES_LENGTH), sizeof(to->lines) - 1);
	to->lines_size = bytes & ~sign_of(bpf_probe_read_user(to->lines, bytes, (void *)lines));
	walk->is_locked = true;		/* see name_sample() */
	if (!new_codes.push(to, 0))
		codes_seen.update(&id, &epoch);
	else
		known->described = 0;	/* the next wait in it tries again */
	walk->is_locked = false;
}

/* Read the Python frames of `current`. */
static __always_inline void walk_python(const struct offcpu_run *run, struct offcpu_walk *walk)
{
	u64 i, code, mark, index;
	struct offcpu_python_object *known;

	walk->nr = walk->unreadable = walk->room = walk->from = 0;
	walk->stamp += HASH_MULTIPLIER;
	find_frame(run, walk);
	for_each_round(run->ctl, i, 0, PYTHON_ROUNDS) {
		if (!walk->frame || walk->nr >= OFFCPU_PYTHON_FRAMES || view_frame(walk))
			break;
		code = view_at(walk, walk->at.code) & ~walk->at.tag;
		index = view_at(walk, walk->at.instruction) & walk->at.index_mask;
		mark = view_at(walk, walk->at.entry) >> walk->at.entry_shift & 0xff;
		walk->frame = view_at(walk, walk->at.previous);
		if (mark >= walk->at.least_shim) {
			frame_at(walk, walk->nr - 1) |= 1 << ENTRY_SHIFT;
			continue;
		}
		known = known_of(walk, code);
		if (known->stamp != (walk->stamp ^ code)) {
			walk->unreadable = bpf_probe_read_user(walk->code, CODE_BYTES,
							       (void *)code);
			if (walk->unreadable)
				break;
			known->hash = hash_code(run, walk);
			known->stamp = walk->stamp ^ code;
			announce_code(run, walk, known);
		}
		index -= (code + walk->at.instructions) & walk->at.relative;
		index = at_most(index >> walk->at.unit_shift, (1 << ENTRY_SHIFT) - 1);
		index |= (walk->at.entry_each | (mark & walk->at.entry_marked)) << ENTRY_SHIFT;
		frame_at(walk, walk->nr) = known->hash << CODE_ID_SHIFT | index;
		walk->nr += 1;
	}
	if (walk->unreadable || (walk->frame && walk->nr < OFFCPU_PYTHON_FRAMES))
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

/* Read the Python frames of a thread, unless it runs another program by now. */
static __always_inline bool walk_known(const struct offcpu_run *run, struct offcpu_walk *walk)
{
	u64 mm = (u64)POINTER(run->task, TASK_MM);
	struct offcpu_python *at = pythons.lookup(&run->wait->pid);

	if (!at || (at->mm && at->mm != mm))
		return false;
	at->mm = mm;
	walk->at = *at;
	walk_python(run, walk);
	return true;
}
#endif
