/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The ways out of the kernel for a wait: a sum, a sample, or a counter.
 */
#define PERF_CONTEXT_KERNEL ((u64)-128)	/* include/uapi/linux/perf_event.h */
#define PERF_CONTEXT_USER ((u64)-512)
#define PERF_CONTEXT_USER_DEFERRED ((u64)-640)
#define ENOSPC 28
#define RATE_WINDOW_NS 100000000ULL
#define RATE_FIRST_NS 1000		/* a threshold of 0 rises to this first */

/* What tells the sums of a thread apart. */
__inline struct offcpu_sum_key sum_key(struct offcpu_wait *wait)
{
	u32 flags = wait->flags & (OFFCPU_PREEMPTED_WAIT | OFFCPU_YIELDED);
	u64 what = (u64)(u32)wait->syscall << 32 | (wait->prev_state ^ flags << 28);
	u64 who = wait->caller ? wait->caller : wait->stack;
	struct offcpu_sum_key key = {
		.tid = wait->tid,
		.generation = wait->generation,
		.kind = (who ^ what * 0xff51afd7ed558ccdULL) + wait->cgroup * 0x9e3779b97f4a7c15ULL,
	};

	return key;
}

/* Whether a sum is of such waits: two kinds of waits of one thread may have the same hash. */
__inline bool is_of(struct offcpu_sum *sum, struct offcpu_wait *wait)
{
	return sum->caller == wait->caller && (wait->caller || sum->stack == wait->stack) &&
	       sum->cgroup == wait->cgroup && sum->state == wait->prev_state && sum->syscall == wait->syscall &&
	       sum->flags == (wait->flags & (OFFCPU_PREEMPTED_WAIT | OFFCPU_YIELDED));
}

/* Begin a sum with a wait; false if there is no room. */
__inline bool begin_sum(struct offcpu_wait *wait, struct offcpu_sum_key *key)
{
	bool woken = wait->runq_ns != OFFCPU_NOT_KNOWN;
	struct offcpu_sum first = {
		.stack = wait->stack,
		.caller = wait->caller,
		.cgroup = wait->cgroup,
		.state = wait->prev_state,
		.syscall = wait->syscall,
		.flags = wait->flags & (OFFCPU_PREEMPTED_WAIT | OFFCPU_YIELDED),
		.pid = wait->pid,
		.total_ns = wait->ns,
		.count = 1,
		.longest_ns = wait->ns,
		.first_switch_out_ns = wait->switch_out_ns,
		.last_switch_in_ns = wait->switch_in_ns,
		.runq_ns = woken ? wait->runq_ns : 0,
		.woken = woken,
		.lost = wait->lost,
	};

	return !sums.update(key, &first);
}

/* Add a wait to a sum; false if that is of others. */
__inline bool add_to_sum(struct offcpu_sum *sum, struct offcpu_wait *wait)
{
	if (!is_of(sum, wait))
		return false;
	/* Plain additions: the waits of one thread never end on two CPUs at a time. */
	sum->total_ns += wait->ns;
	sum->count += 1;
	if (wait->ns > sum->longest_ns)
		sum->longest_ns = wait->ns;
	sum->last_switch_in_ns = wait->switch_in_ns;
	if (wait->runq_ns != OFFCPU_NOT_KNOWN) {
		sum->runq_ns += wait->runq_ns;
		sum->woken += 1;
	}
	sum->lost |= wait->lost;
	return true;
}

/* Sum a wait that could not be sent; false if there is no room. */
__inline bool sum_instead(struct offcpu_wait *wait)
{
	struct offcpu_sum_key key = sum_key(wait);
	struct offcpu_sum *sum = sums.lookup(&key);

	return sum ? add_to_sum(sum, wait) : begin_sum(wait, &key);
}

/* Append a context marker and frames to the sample; gives the word after them. */
__inline u32 append_frames(struct offcpu_scratch *to, u32 at, u64 marker, const u64 *ips, u32 nr)
{
	/* clang 15 and newer know these limits from what is before, and would leave out what the verifier needs. */
	BOUNDED(nr);
	BOUNDED(at);
	if (!nr || at > OFFCPU_SAMPLE_WORDS - 1 - OFFCPU_FRAMES)
		return at;
	nr &= OFFCPU_FRAMES;
	to->sample.words[at] = marker;
	bpf_probe_read_kernel(&to->sample.words[at + 1], nr * sizeof(u64), ips);
	return at + 1 + nr;
}

#if OFFCPU_WAKER_STACKS
/* Append the waker's callchain behind the extension; gives the word after it. */
__inline u32 append_waker(struct offcpu_wait *wait, struct offcpu_scratch *to, u32 at)
{
	struct offcpu_waker_stack *waker = &wait->storage->waker;
	u32 first = waker->first, nr = waker->nr_kernel;

	if (!wait->wakeup_ns)
		return at;
	if (first < nr && nr <= OFFCPU_FRAMES)
		at = append_frames(to, at, PERF_CONTEXT_KERNEL, &waker->kernel[first], nr - first);
	at = append_frames(to, at, PERF_CONTEXT_USER, waker->user.ips, waker->user.nr);
	waker->nr_kernel = 0;
	waker->user.nr = 0;
	return at;
}
#endif

#if OFFCPU_DEFER_USER
/*
 * The mark of a user part that comes later, in a record of its own, with room for the cookie that will tell
 * which: the perf core puts it into the sample's own callchain, where readers find it.
 */
__inline u32 append_deferral(struct offcpu_scratch *to, u32 at)
{
	BOUNDED(at);
	if (at > OFFCPU_SAMPLE_WORDS - 2)
		return at;
	to->sample.words[at] = PERF_CONTEXT_USER_DEFERRED;
	to->sample.words[at + 1] = 0;
	return at + 2;
}
#endif

/* Write the sleeper's callchain; gives the word after it. */
__inline u32 append_callchain(void *ctx, struct offcpu_wait *wait, struct offcpu_scratch *to, u32 *lost)
{
	u32 at = 0;

#if OFFCPU_KERNEL_STACKS
	u32 nr = wait->first ? 0 : walk_kernel_stack(ctx, wait, to), first = to->first;

	if (!nr && !wait->first)
		*lost |= OFFCPU_LOST_KERNEL_STACK;
	if (nr >= OFFCPU_FRAME_LIMIT)
		*lost |= OFFCPU_LOST_KERNEL_CUT;
	if (first < nr && nr <= OFFCPU_FRAMES)
		at = append_frames(to, at, PERF_CONTEXT_KERNEL, &to->kernel[first], nr - first);
#endif
#if OFFCPU_DEFER_USER
	if (!(FIELD(u32, wait->task, TASK_FLAGS) & PF_KTHREAD)) {
		*lost &= ~(OFFCPU_LOST_USER_STACK | OFFCPU_LOST_USER_CUT);
		return append_deferral(to, at);
	}
#endif
	return append_frames(to, at, PERF_CONTEXT_USER, wait->user->ips, wait->user->nr);
}

/* Write what is known of a wait beyond upstream's words. */
__inline void describe_wait(struct offcpu_extension *to, struct offcpu_wait *wait, u32 lost, u32 waker_nr)
{
	bool woken = wait->wakeup_ns;

	*to = (struct offcpu_extension){
		.magic = OFFCPU_MAGIC,
		.version = OFFCPU_VERSION,
		.size = OFFCPU_EXTENSION_SIZE,
		.kind = wait->first ? OFFCPU_KIND_SUM :
			wait->flags & OFFCPU_BEGAN_BEFORE ? OFFCPU_KIND_BEGAN_BEFORE : OFFCPU_KIND_WAIT,
		.waker_offset = waker_nr ? sizeof(*to) : 0,
		.waker_nr = waker_nr,
		.flags = wait->flags,
		.lost = lost,
		.state = wait->prev_state,
		.syscall = wait->syscall,
		.waker_pid = woken ? wait->storage->waker_pid : OFFCPU_NO_ID,
		.waker_tid = woken ? wait->storage->waker_tid : OFFCPU_NO_ID,
		.wakeup_ns = woken ? wait->wakeup_ns : OFFCPU_NOT_KNOWN,
		.switch_out_ns = wait->switch_out_ns,
		.count = 1,
		.longest_ns = wait->ns,
		.runq_ns = wait->runq_ns,
		.caller = wait->first ? wait->caller : 0,
	};
}

/* Send one wait as a sample; false if the ring did not take it. */
__inline bool send_sample(void *ctx, struct offcpu_wait *wait, struct offcpu_scratch *to)
{
	struct offcpu_payload *sample = &to->sample;
	u32 lost = wait->user->lost, nr, end;
	long error;

	nr = append_callchain(ctx, wait, to, &lost);
	if (nr > OFFCPU_CHAIN_WORDS)
		return false;
	end = nr + 1 + OFFCPU_EXTENSION_WORDS;
#if OFFCPU_WAKER_STACKS
	end = append_waker(wait, to, end);
#endif
	sample->pid = wait->pid;
	sample->tid = wait->tid;
	sample->offcpu_ns = wait->ns;
	sample->nr = nr;
	sample->words[nr] = wait->cgroup;
	describe_wait((void *)&sample->words[nr + 1], wait, lost, end - nr - 1 - OFFCPU_EXTENSION_WORDS);
	if (end > OFFCPU_SAMPLE_WORDS)
		return false;
	error = events.perf_submit(ctx, sample, offsetof(struct offcpu_payload, words) + end * sizeof(u64));
	if (wait->first) {
		count(error ? OFFCPU_SNAPSHOTS_LOST : OFFCPU_SNAPSHOTS, wait->ns);
		return !error;
	}
	count(!error ? OFFCPU_SAMPLES : error == -ENOSPC ? OFFCPU_RING_FULL : OFFCPU_OUTPUT_FAILED, wait->ns);
	return !error;
}

#if OFFCPU_MAX_RATE
/* A new window of the limited rate: if there were few samples in the last one, the threshold sinks again. */
__inline void open_window(struct offcpu_rate *limit, u64 now, u64 user_ns)
{
	limit->window_ns = now;
	if (limit->sent < OFFCPU_MAX_RATE / 4) {
		limit->threshold_ns /= 2;
		if (limit->threshold_ns < RATE_FIRST_NS || limit->threshold_ns < user_ns)
			limit->threshold_ns = 0;
	}
	limit->sent = 0;
}

/* The window's samples are used up: once a window that makes the threshold rise. */
__inline void raise_threshold(struct offcpu_rate *limit, u64 user_ns)
{
	u64 from = limit->threshold_ns ? limit->threshold_ns : user_ns;

	if (limit->raised_in == limit->window_ns)
		return;
	limit->raised_in = limit->window_ns;
	limit->threshold_ns = from < RATE_FIRST_NS ? RATE_FIRST_NS : 2 * from;
	limit->raised += 1;
	if (limit->threshold_ns > limit->highest_ns)
		limit->highest_ns = limit->threshold_ns;
}

/*
 * Whether a wait over the user's threshold may go out as a sample: OFFCPU_MAX_RATE of them in a window of
 * 100 ms. CPUs do not wait for each other here, so that there may be one too many for each of them.
 */
__inline bool may_send(struct offcpu_wait *wait, u64 user_ns)
{
	u32 zero = 0;
	struct offcpu_rate *limit = rate.lookup(&zero);

	if (!limit)
		return true;
	if (wait->switch_in_ns - limit->window_ns >= RATE_WINDOW_NS)
		open_window(limit, wait->switch_in_ns, user_ns);
	if (wait->ns >= limit->threshold_ns) {
		if (limit->sent < OFFCPU_MAX_RATE) {
			__sync_fetch_and_add(&limit->sent, 1);
			return true;
		}
		raise_threshold(limit, user_ns);
	}
	count(OFFCPU_RATE_LIMITED, wait->ns);
	return false;
}
#endif

#if OFFCPU_SUM_STACKS
/* Keep the stack of a wait that begins a sum, or is told from others by its stack. */
__inline void keep_user_stack(struct offcpu_wait *wait)
{
	wait->stack = intern_stack(wait);
	wait->lost = wait->stack || !wait->user->nr ? wait->user->lost : OFFCPU_LOST_USER_STACK;
}
#endif

/* Sum a wait; false if it is to be sent instead: there is no room, or it is the `first` of its callers. */
__inline bool sum_wait(struct offcpu_wait *wait)
{
	struct offcpu_sum_key key;
	struct offcpu_sum *sum;

	wait->lost = 0;
#if OFFCPU_SUM_CALLERS
	wait->lost = wait->user->lost;
	wait->caller = hash_callers(wait);
	if (!wait->caller)
		keep_user_stack(wait);
#elif OFFCPU_SUM_STACKS
	keep_user_stack(wait);
#endif
	key = sum_key(wait);
	sum = sums.lookup(&key);
	if (sum) {
		if (add_to_sum(sum, wait))
			return true;
		count(OFFCPU_SUM_MAP_FULL, wait->ns);
		return false;
	}
#if OFFCPU_SUM_CALLERS
	if (wait->caller) {
		keep_user_stack(wait);
		if (is_first(wait->caller)) {
			/* A sum, even if of one: who woke it is not told. */
			wait->first = true;
			wait->wakeup_ns = 0;
			wait->flags &= OFFCPU_PREEMPTED_WAIT | OFFCPU_YIELDED;
			return false;
		}
	}
#endif
	if (begin_sum(wait, &key))
		return true;
	count(OFFCPU_SUM_MAP_FULL, wait->ns);
	return false;
}

/* A wait is over and worth its name: sum it or send it, and if the one fails do the other. */
__inline void account(void *ctx, struct offcpu_wait *wait, u64 threshold_ns)
{
	bool is_long = wait->ns >= threshold_ns || wait->flags & OFFCPU_BEGAN_BEFORE, sampled = is_long;
	u32 zero = 0;
	struct offcpu_scratch *to;

#if OFFCPU_DROP_SHORT
	if (!is_long) {
		count(OFFCPU_DROPPED, wait->ns);
		return;
	}
#endif
#if OFFCPU_MAX_RATE
	if (is_long && !(wait->flags & OFFCPU_BEGAN_BEFORE))
		sampled = may_send(wait, threshold_ns);
#endif
	wait->lost = OFFCPU_LOST_USER_STACK;
	if (!sampled && sum_wait(wait))
		return;
	to = scratch.lookup(&zero);
	if (!to)
		return;
#if !WALK_AT_SWITCH_OUT
	wait->user = &to->user;
#if OFFCPU_DEFER_USER
	to->user.nr = 0;
	to->user.lost = 0;
#else
	take_user_stack(ctx, wait->task, wait->user, 0, false);
#endif
#endif
	if (send_sample(ctx, wait, to)) {
#if OFFCPU_SUM_CALLERS
		if (wait->first)
			note_sent(wait->caller);
#endif
		return;
	}
	if ((!sampled && !wait->first) || !sum_instead(wait))
		count(OFFCPU_WAITS_LOST, wait->ns);
}
