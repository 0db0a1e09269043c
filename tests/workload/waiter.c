/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waiter: a program whose waits are known, to check a tracer of waits against.
 *
 * Each named thread waits in one known way for --rounds rounds. Around each wait the program reads
 * CLOCK_MONOTONIC and the thread's own count of voluntary context switches (RUSAGE_THREAD), and at the
 * end it prints what it measured, so that nothing about the expected result is assumed:
 *
 *   thread         waits for                                                       waits a round
 *   locker-a, -b   a mutex that the other holds for 12 ms; sleeps while it holds   1 lock, 2 sleeps
 *   sleeper        8 ms of clock_nanosleep                                         1
 *   pipe-reader    a byte that comes every 10 ms                                   1
 *   pipe-writer    10 ms of clock_nanosleep, then it writes the byte               1
 *   poller         poll() on a silent pipe, 9 ms time-out                          1
 *   cond-waiter    a condition variable that is signalled every 11 ms              1
 *   cond-signaler  11 ms of clock_nanosleep, then it signals                       1
 *   syncer         fsync of 4 KB in a file in $TMPDIR or here; a file system in    0 or more
 *                  memory does not wait, others wait more than once a call
 *   deep-sleeper   6 ms of clock_nanosleep under 100 levels of recursion           1
 *   short-sleeper  20 times 200 us of clock_nanosleep                              20
 *   burner         nothing: it computes for 10 ms of CPU time                      0
 *   stuck-reader   a pipe without a writer; it is still blocked when the program exits
 *   waiter         (the main thread) its workers, in one wait
 *
 * Every thread first waits once for the start (20 ms or more). Threads are made one after the other and
 * touch their stacks before the start, they finish without being joined, and lookups of symbols are bound
 * at load time (-z now), so that outside the measured places there is nothing to wait for.
 *
 * Deliberate waits are 4 ms or longer, far from the 1 ms over which perf-offcpu records waits one by one
 * by default; those of short-sleeper are far below it, and the time of an fsync depends on the disk.
 * The two lockers hold the mutex in turn: one has asked for it well before the other releases it, and the
 * one that releases it waits 4 ms before it asks again.
 *
 * On a loaded machine a wait may fail to happen (the lock was free, the byte was there; a CPU that found
 * nothing else to run before a short sleep was over did not switch at all) or may take two switches
 * (woken, but the lock was gone again): the counts say what did happen, by the kernel's own counter.
 *
 * Output: one JSON object a line for each thread, the main thread and stuck-reader last.
 *   comm, pid, tid, kind
 *   waits, total_ns, min_ns, max_ns   calls that blocked, and their time by CLOCK_MONOTONIC, all sites
 *   begin_ns, end_ns                  the measured part of the thread's life, CLOCK_MONOTONIC; for
 *                                     stuck-reader it ends where its endless wait begins
 *   cpu_ns, nvcsw, nivcsw             CPU time and voluntary / involuntary switches in that part;
 *                                     waits == nvcsw unless a call blocked more than once (syncer)
 *   blocked_since_ns                  stuck-reader: when its endless wait began; for others 0
 *   sites                             the same for each place where the thread waits:
 *     kind, stack                     how it waits and in which functions of this file, root first
 *     calls, waits, switches          calls made, calls that blocked, switches within them
 *     short_switches                  switches in calls of less than 1 ms: waits below
 *                                     perf-offcpu's threshold for sure, however slow the machine is
 *     total_ns, min_ns, max_ns        time of the calls that blocked
 *
 * The main thread's account begins with main(): a tracer also sees it wait for the loader's pages, if it did.
 *
 * Build: build.sh next to this file. Where libc has no frame pointers, a walk by frame pointers misses the
 * function that called libc (the last of `stack`), and libc's pthread_cond_wait, which uses rbp for
 * something else, hides more.
 *
 * Usage: waiter [--rounds N] [--delay SECONDS] [--hold SECONDS]
 *   --rounds N   rounds of each thread (20)
 *   --delay S    time before the start, for a tracer that attaches to the running program (0)
 *   --hold S     time after the last round, with stuck-reader still blocked (0)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_US INT64_C(1000)
#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)
#define DEPTH 100
#define SHORT_SLEEPS_PER_ROUND 20
#define MAX_SITES 4
#define STACK_TOUCH (64 * 1024)

/* A frame of its own in every stack: never inlined, cloned or merged with its caller. */
#if defined(__clang__)
#define FRAME __attribute__((noinline, disable_tail_calls))
#else
#define FRAME __attribute__((noipa))
#endif
/* Keeps a call from being the last thing its caller does, and the caller from being a leaf. */
#define STAY() __asm__ volatile("" ::: "memory")

/* One place where a thread waits. */
struct site {
	const char *kind;
	const char *stack; /* functions of this file, root first */
	long calls, waits, switches, short_switches;
	int64_t total_ns, min_ns, max_ns;
};

/* One thread and what it measured of itself. The thread writes, main reads when it has finished. */
struct worker {
	const char *comm;
	const char *kind;
	void (*prepare)(void); /* before the start; may be NULL */
	void (*run)(struct worker *self);
	struct site sites[MAX_SITES]; /* the first is the start; ends with kind == NULL or the array */
	pid_t tid;
	int64_t begin_ns, end_ns, cpu_ns;
	long nvcsw, nivcsw;
	_Atomic int64_t blocked_since_ns;
};

/* A wait being measured. */
struct span {
	int64_t begin_ns;
	long nvcsw;
};

static long rounds = 20;
static _Atomic uint32_t arrived, started, running, finished;

static void die(const char *what)
{
	fprintf(stderr, "waiter: %s: %s\n", what, strerror(errno));
	_exit(1);
}

/* ---- clocks and accounts ---- */

static int64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static struct rusage thread_usage(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_THREAD, &usage))
		die("getrusage");
	return usage;
}

static struct span span_begin(void)
{
	long nvcsw = thread_usage().ru_nvcsw;

	return (struct span){ .begin_ns = clock_ns(CLOCK_MONOTONIC), .nvcsw = nvcsw };
}

/* Only a call that blocked is a wait: the kernel counted a switch within it. */
static void span_end(struct site *site, struct span span)
{
	int64_t ns = clock_ns(CLOCK_MONOTONIC) - span.begin_ns;
	long switches = thread_usage().ru_nvcsw - span.nvcsw;

	site->calls++;
	if (switches == 0)
		return;
	site->min_ns = site->waits == 0 || ns < site->min_ns ? ns : site->min_ns;
	site->max_ns = ns > site->max_ns ? ns : site->max_ns;
	site->total_ns += ns;
	site->switches += switches;
	site->short_switches += ns < NS_PER_MS ? switches : 0;
	site->waits++;
}

static void account_begin(struct worker *self)
{
	struct rusage usage = thread_usage();

	self->tid = (pid_t)syscall(SYS_gettid);
	self->begin_ns = clock_ns(CLOCK_MONOTONIC);
	self->cpu_ns = -clock_ns(CLOCK_THREAD_CPUTIME_ID);
	self->nvcsw = -usage.ru_nvcsw;
	self->nivcsw = -usage.ru_nivcsw;
}

static void account_end(struct worker *self)
{
	struct rusage usage = thread_usage();

	self->nvcsw += usage.ru_nvcsw;
	self->nivcsw += usage.ru_nivcsw;
	self->cpu_ns += clock_ns(CLOCK_THREAD_CPUTIME_ID);
	self->end_ns = clock_ns(CLOCK_MONOTONIC);
}

/* ---- ways to wait ---- */

/* A bare futex rather than pthread_barrier_wait, whose leavers may wait for each other again. */
static void futex_wait_while_zero(_Atomic uint32_t *word)
{
	while (atomic_load(word) == 0)
		syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

static void futex_set_and_wake(_Atomic uint32_t *word)
{
	atomic_store(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static FRAME void wait_for_start(struct site *site)
{
	struct span span = span_begin();

	atomic_fetch_add(&arrived, 1);
	futex_wait_while_zero(&started);
	span_end(site, span);
}

/* A relative sleep: an absolute one may be over before it begins, and then there is no wait. */
static FRAME void sleep_for(struct site *site, int64_t ns)
{
	struct timespec left = { .tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S };
	struct span span = span_begin();

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR)
		STAY();
	span_end(site, span);
}

/* ---- lock: two threads take turns with one mutex ---- */

static pthread_mutex_t ledger_mutex = PTHREAD_MUTEX_INITIALIZER;

static FRAME void wait_for_lock(struct site *site)
{
	struct span span = span_begin();

	pthread_mutex_lock(&ledger_mutex);
	span_end(site, span);
}

static FRAME void enter_ledger(struct worker *self)
{
	wait_for_lock(&self->sites[1]);
	STAY();
}

static FRAME void work_on_ledger(struct worker *self)
{
	sleep_for(&self->sites[2], 12 * NS_PER_MS);
	pthread_mutex_unlock(&ledger_mutex);
}

static FRAME void leave_ledger(struct worker *self)
{
	sleep_for(&self->sites[3], 4 * NS_PER_MS);
	STAY();
}

static void take_ledger_first(void)
{
	pthread_mutex_lock(&ledger_mutex);
}

/* Has the lock before the start, so that every later request of either locker finds it taken. */
static FRAME void lock_worker_a(struct worker *self)
{
	for (long i = 0; i < rounds; i++) {
		work_on_ledger(self);
		leave_ledger(self);
		enter_ledger(self);
	}
	pthread_mutex_unlock(&ledger_mutex);
}

static FRAME void lock_worker_b(struct worker *self)
{
	for (long i = 0; i < rounds; i++) {
		enter_ledger(self);
		work_on_ledger(self);
		leave_ledger(self);
	}
	STAY();
}

/* ---- sleep ---- */

static FRAME void sleep_round(struct worker *self)
{
	sleep_for(&self->sites[1], 8 * NS_PER_MS);
	STAY();
}

static FRAME void sleep_worker(struct worker *self)
{
	for (long i = 0; i < rounds; i++)
		sleep_round(self);
	STAY();
}

static FRAME void short_sleep_round(struct worker *self)
{
	for (int i = 0; i < SHORT_SLEEPS_PER_ROUND; i++)
		sleep_for(&self->sites[1], 200 * NS_PER_US);
	STAY();
}

static FRAME void short_sleep_worker(struct worker *self)
{
	for (long i = 0; i < rounds; i++)
		short_sleep_round(self);
	STAY();
}

/* ---- deep recursion ---- */

static FRAME void descend(struct worker *self, int level)
{
	if (level == 1)
		sleep_for(&self->sites[1], 6 * NS_PER_MS);
	else
		descend(self, level - 1);
	STAY();
}

/* "run_worker;deep_worker;descend;…;descend;sleep_for" */
static const char *deep_stack(void)
{
	static char text[sizeof "run_worker;deep_worker;sleep_for" + DEPTH * sizeof ";descend"];
	char *end = stpcpy(text, "run_worker;deep_worker");

	for (int i = 0; i < DEPTH; i++)
		end = stpcpy(end, ";descend");
	stpcpy(end, ";sleep_for");
	return text;
}

static FRAME void deep_worker(struct worker *self)
{
	self->sites[1].stack = deep_stack();
	for (long i = 0; i < rounds; i++)
		descend(self, DEPTH);
	STAY();
}

/* ---- pipe and poll ---- */

static int letters[2], silence[2]; /* pipes: one byte each 10 ms; nothing ever */

static FRAME void read_byte(int fd, struct site *site)
{
	struct span span = span_begin();
	char byte;

	if (read(fd, &byte, 1) != 1)
		die("read from pipe");
	span_end(site, span);
}

static FRAME void receive_letter(struct worker *self)
{
	read_byte(letters[0], &self->sites[1]);
	STAY();
}

static FRAME void pipe_reader_worker(struct worker *self)
{
	for (long i = 0; i < rounds; i++)
		receive_letter(self);
	STAY();
}

static FRAME void send_letter(struct worker *self)
{
	sleep_for(&self->sites[1], 10 * NS_PER_MS);
	if (write(letters[1], "x", 1) != 1)
		die("write to pipe");
}

static FRAME void pipe_writer_worker(struct worker *self)
{
	for (long i = 0; i < rounds; i++)
		send_letter(self);
	STAY();
}

static FRAME void poll_silence(struct site *site, int timeout_ms)
{
	struct span span = span_begin();
	struct pollfd fds = { .fd = silence[0], .events = POLLIN };

	if (poll(&fds, 1, timeout_ms) < 0 && errno != EINTR)
		die("poll");
	span_end(site, span);
}

static FRAME void poll_round(struct worker *self)
{
	poll_silence(&self->sites[1], 9);
	STAY();
}

static FRAME void poll_worker(struct worker *self)
{
	for (long i = 0; i < rounds; i++)
		poll_round(self);
	STAY();
}

static FRAME void wait_for_answer(struct worker *self)
{
	account_end(self);
	atomic_store(&self->blocked_since_ns, self->end_ns);
	read_byte(silence[0], &self->sites[1]);
}

static FRAME void stuck_worker(struct worker *self)
{
	wait_for_answer(self);
	STAY();
}

/* ---- condition variable ---- */

static pthread_mutex_t parcel_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t parcel_there = PTHREAD_COND_INITIALIZER;
static long parcels;

static FRAME void wait_for_condition(struct site *site)
{
	struct span span = span_begin();

	pthread_cond_wait(&parcel_there, &parcel_mutex);
	span_end(site, span);
}

static FRAME void take_parcel(struct worker *self)
{
	pthread_mutex_lock(&parcel_mutex);
	while (parcels == 0)
		wait_for_condition(&self->sites[1]);
	parcels--;
	pthread_mutex_unlock(&parcel_mutex);
}

static FRAME void cond_waiter_worker(struct worker *self)
{
	for (long i = 0; i < rounds; i++)
		take_parcel(self);
	STAY();
}

/* Signals after it has let go of the mutex, so that the woken thread does not wait for that too. */
static FRAME void deliver_parcel(struct worker *self)
{
	sleep_for(&self->sites[1], 11 * NS_PER_MS);
	pthread_mutex_lock(&parcel_mutex);
	parcels++;
	pthread_mutex_unlock(&parcel_mutex);
	pthread_cond_signal(&parcel_there);
}

static FRAME void cond_signaler_worker(struct worker *self)
{
	for (long i = 0; i < rounds; i++)
		deliver_parcel(self);
	STAY();
}

/* ---- fsync ---- */

static int journal_fd;

/* The file has no name any more and goes with the process: closing it could wait too. */
static int open_journal(void)
{
	const char *dir = getenv("TMPDIR");
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof path, "%s/waiter-journal-XXXXXX", dir && *dir ? dir : ".");
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		die(path);
	unlink(path);
	return fd;
}

static FRAME void sync_journal(struct site *site)
{
	struct span span = span_begin();

	if (fsync(journal_fd))
		die("fsync");
	span_end(site, span);
}

static FRAME void commit_journal(struct worker *self)
{
	static const char page[4096];

	if (write(journal_fd, page, sizeof page) != sizeof page)
		die("write to journal");
	sync_journal(&self->sites[1]);
	STAY();
}

static FRAME void sync_worker(struct worker *self)
{
	for (long i = 0; i < rounds; i++)
		commit_journal(self);
	STAY();
}

/* ---- no wait at all ---- */

static volatile double burnt = 1.0;

static FRAME void compute(int64_t cpu_ns)
{
	int64_t until_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) + cpu_ns;

	while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < until_ns)
		for (int i = 0; i < 20000; i++)
			burnt = burnt * 1.000001 + 0.5;
}

static FRAME void burn_round(void)
{
	compute(10 * NS_PER_MS);
	STAY();
}

static FRAME void burn_worker(struct worker *self)
{
	(void)self;
	for (long i = 0; i < rounds; i++)
		burn_round();
	STAY();
}

/* ---- the threads ---- */

#define SITE(kind_, stack_) { .kind = kind_, .stack = stack_ }
#define WORKER(comm_, kind_, run_, ...)                                                     \
	{                                                                                   \
		.comm = comm_, .kind = kind_, .run = run_,                                  \
		.sites = { SITE("start", "run_worker;wait_for_start"), __VA_ARGS__ },       \
	}

static struct worker workers[] = {
	{
		.comm = "locker-a", .kind = "lock", .prepare = take_ledger_first, .run = lock_worker_a,
		.sites = {
			SITE("start", "run_worker;wait_for_start"),
			SITE("lock", "run_worker;lock_worker_a;enter_ledger;wait_for_lock"),
			SITE("sleep", "run_worker;lock_worker_a;work_on_ledger;sleep_for"),
			SITE("sleep", "run_worker;lock_worker_a;leave_ledger;sleep_for"),
		},
	},
	WORKER("locker-b", "lock", lock_worker_b,
	       SITE("lock", "run_worker;lock_worker_b;enter_ledger;wait_for_lock"),
	       SITE("sleep", "run_worker;lock_worker_b;work_on_ledger;sleep_for"),
	       SITE("sleep", "run_worker;lock_worker_b;leave_ledger;sleep_for")),
	WORKER("sleeper", "sleep", sleep_worker,
	       SITE("sleep", "run_worker;sleep_worker;sleep_round;sleep_for")),
	WORKER("pipe-reader", "pipe", pipe_reader_worker,
	       SITE("pipe", "run_worker;pipe_reader_worker;receive_letter;read_byte")),
	WORKER("pipe-writer", "sleep", pipe_writer_worker,
	       SITE("sleep", "run_worker;pipe_writer_worker;send_letter;sleep_for")),
	WORKER("poller", "poll", poll_worker,
	       SITE("poll", "run_worker;poll_worker;poll_round;poll_silence")),
	WORKER("cond-waiter", "condvar", cond_waiter_worker,
	       SITE("condvar", "run_worker;cond_waiter_worker;take_parcel;wait_for_condition")),
	WORKER("cond-signaler", "sleep", cond_signaler_worker,
	       SITE("sleep", "run_worker;cond_signaler_worker;deliver_parcel;sleep_for")),
	WORKER("syncer", "fsync", sync_worker,
	       SITE("fsync", "run_worker;sync_worker;commit_journal;sync_journal")),
	WORKER("deep-sleeper", "deep", deep_worker,
	       SITE("deep", NULL)), /* a long stack: deep_worker writes it down */
	WORKER("short-sleeper", "short-sleep", short_sleep_worker,
	       SITE("short-sleep", "run_worker;short_sleep_worker;short_sleep_round;sleep_for")),
	WORKER("burner", "burn", burn_worker),
	WORKER("stuck-reader", "stuck", stuck_worker,
	       SITE("stuck", "run_worker;stuck_worker;wait_for_answer;read_byte")),
};
#define NR_WORKERS (sizeof workers / sizeof *workers)
#define STUCK (&workers[NR_WORKERS - 1])

static struct worker main_account = {
	.comm = "waiter", .kind = "main",
	.sites = {
		SITE("start", "main;run_workers;sleep_for"),
		SITE("finish", "main;run_workers;wait_for_workers"),
		SITE("hold", "main;sleep_for"),
	},
};

/* Stack pages that a wait would otherwise be the first to need. */
static FRAME void touch_stack(void)
{
	volatile char pages[STACK_TOUCH];

	for (size_t i = 0; i < sizeof pages; i += 1024)
		pages[i] = 0;
}

static FRAME void *run_worker(void *arg)
{
	struct worker *self = arg;

	account_begin(self);
	pthread_setname_np(pthread_self(), self->comm);
	touch_stack();
	if (self->prepare)
		self->prepare();
	wait_for_start(&self->sites[0]);
	self->run(self);
	account_end(self);
	if (atomic_fetch_sub(&running, 1) == 1)
		futex_set_and_wake(&finished);
	return NULL;
}

/* One at a time: threads that start while others are made would wait for the address space's lock. */
static void make_worker(struct worker *worker, uint32_t already)
{
	pthread_t thread;

	errno = pthread_create(&thread, NULL, run_worker, worker);
	if (errno)
		die("pthread_create");
	while (atomic_load(&arrived) == already)
		sched_yield();
}

static FRAME void wait_for_workers(struct site *site)
{
	struct span span = span_begin();

	futex_wait_while_zero(&finished);
	span_end(site, span);
}

static FRAME void run_workers(double delay_s)
{
	for (uint32_t i = 0; i < NR_WORKERS; i++)
		make_worker(&workers[i], i);
	atomic_store(&running, NR_WORKERS - 1); /* all but the stuck one finish */
	sleep_for(&main_account.sites[0], 20 * NS_PER_MS + (int64_t)(delay_s * NS_PER_S));
	futex_set_and_wake(&started);
	wait_for_workers(&main_account.sites[1]);
}

/* ---- the result ---- */

static void print_times(const struct site *sum)
{
	printf("\"total_ns\":%" PRId64 ",\"min_ns\":%" PRId64 ",\"max_ns\":%" PRId64, sum->total_ns, sum->min_ns,
	       sum->max_ns);
}

static void add_site(struct site *sum, const struct site *site)
{
	if (site->waits == 0)
		return;
	sum->min_ns = sum->waits == 0 || site->min_ns < sum->min_ns ? site->min_ns : sum->min_ns;
	sum->max_ns = site->max_ns > sum->max_ns ? site->max_ns : sum->max_ns;
	sum->total_ns += site->total_ns;
	sum->waits += site->waits;
}

static void print_worker(const struct worker *worker)
{
	int nr_sites = 0;
	struct site sum = { 0 };

	while (nr_sites < MAX_SITES && worker->sites[nr_sites].kind)
		add_site(&sum, &worker->sites[nr_sites++]);
	printf("{\"comm\":\"%s\",\"pid\":%d,\"tid\":%d,\"kind\":\"%s\",\"waits\":%ld,", worker->comm,
	       (int)getpid(), (int)worker->tid, worker->kind, sum.waits);
	print_times(&sum);
	printf(",\"begin_ns\":%" PRId64 ",\"end_ns\":%" PRId64 ",\"cpu_ns\":%" PRId64, worker->begin_ns,
	       worker->end_ns, worker->cpu_ns);
	printf(",\"nvcsw\":%ld,\"nivcsw\":%ld,\"blocked_since_ns\":%" PRId64 ",\"sites\":[", worker->nvcsw,
	       worker->nivcsw, atomic_load(&worker->blocked_since_ns));
	for (int i = 0; i < nr_sites; i++) {
		const struct site *site = &worker->sites[i];

		printf("%s{\"kind\":\"%s\",\"stack\":\"%s\",\"calls\":%ld,\"waits\":%ld,", i ? "," : "", site->kind,
		       site->stack, site->calls, site->waits);
		printf("\"switches\":%ld,\"short_switches\":%ld,", site->switches, site->short_switches);
		print_times(site);
		printf("}");
	}
	printf("]}\n");
}

static long parse_rounds(const char *text)
{
	char *end;
	long value = strtol(text, &end, 10);

	if (end == text || *end || value < 1 || value > 1000000) {
		fprintf(stderr, "waiter: --rounds wants a number from 1 to 1000000, not '%s'\n", text);
		exit(2);
	}
	return value;
}

static double parse_seconds(const char *option, const char *text)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= 0 && value <= 86400)) {
		fprintf(stderr, "waiter: --%s wants seconds from 0 to 86400, not '%s'\n", option, text);
		exit(2);
	}
	return value;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "rounds", required_argument, NULL, 'r' }, { "delay", required_argument, NULL, 'd' },
		{ "hold", required_argument, NULL, 'h' }, { 0 },
	};
	double delay_s = 0, hold_s = 0;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'r': rounds = parse_rounds(optarg); break;
		case 'd': delay_s = parse_seconds("delay", optarg); break;
		case 'h': hold_s = parse_seconds("hold", optarg); break;
		default:
			fprintf(stderr, "usage: waiter [--rounds N] [--delay SECONDS] [--hold SECONDS]\n");
			return 2;
		}
	}
	account_begin(&main_account);
	if (pipe2(letters, O_CLOEXEC) || pipe2(silence, O_CLOEXEC))
		die("pipe");
	journal_fd = open_journal();
	run_workers(delay_s);
	for (struct worker *worker = workers; worker < STUCK; worker++)
		print_worker(worker);
	fflush(stdout);
	if (hold_s > 0)
		sleep_for(&main_account.sites[2], (int64_t)(hold_s * NS_PER_S));
	account_end(&main_account);
	print_worker(&main_account);
	print_worker(STUCK);
	return 0;
}
