/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs whose waits have a known cause, and that measure themselves:
 *
 *   designs request ROUNDS SLEEP_US CLIENT_US A_US B_US C_US D_US
 *	A client asks a, which asks b (socket), which asks c, which asks d; each computes, and d sleeps first.
 *   designs pipeline ITEMS FIRST_US SECOND_US THIRD_US FOURTH_US
 *	Four processes with full pipes between them; the third computes, the others sleep.
 *   designs convoy ROUNDS THREADS HOLD_US
 *	Threads take turns at a fair lock and compute while they hold it.
 *   designs hog ROUNDS SLEEP_US WORK_US HOGS
 *	A thread sleeps and computes on a CPU that others keep busy.
 *   designs barrier ROUNDS THREADS PUNCTUAL_US LATE_US
 *	All threads but one sleep, one computes for longer, then all meet at a barrier.
 *
 * For each thread a line of JSON: its window on CLOCK_MONOTONIC; CPU time, time in calls that wait for
 * others, and time asleep within it; ns.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 16
#define NOINLINE __attribute__((noipa))

struct record {
	char comm[16];
	int tid;
	long begin, end, cpu, waited, slept;
};

static struct record *records; /* shared with children */
static _Thread_local struct record *mine;
static long parameters[MOST];

static long now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void check(bool good, const char *what)
{
	if (!good) {
		perror(what);
		_exit(1);
	}
}

static void begin(int row, const char *comm)
{
	mine = &records[row];
	snprintf(mine->comm, sizeof(mine->comm), "%s", comm);
	prctl(PR_SET_NAME, comm);
	mine->tid = syscall(SYS_gettid);
	mine->begin = now(CLOCK_MONOTONIC);
	mine->cpu = -now(CLOCK_THREAD_CPUTIME_ID);
}

static void end(void)
{
	mine->cpu += now(CLOCK_THREAD_CPUTIME_ID);
	mine->end = now(CLOCK_MONOTONIC);
}

static void pin(int cpu)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(cpu % sysconf(_SC_NPROCESSORS_ONLN), &one);
	check(!sched_setaffinity(0, sizeof(one), &one), "sched_setaffinity");
}

static NOINLINE void compute(long us)
{
	long until = now(CLOCK_THREAD_CPUTIME_ID) + us * 1000;

	while (now(CLOCK_THREAD_CPUTIME_ID) < until)
		for (volatile int at = 0; at < 300; at++)
			;
}

static NOINLINE void nap(long us)
{
	struct timespec time = { us / 1000000, us % 1000000 * 1000 };
	long since = now(CLOCK_MONOTONIC);

	nanosleep(&time, NULL);
	mine->slept += now(CLOCK_MONOTONIC) - since;
}

static NOINLINE bool take(int fd, size_t size)
{
	char buffer[4096];
	long since = now(CLOCK_MONOTONIC);
	ssize_t got = read(fd, buffer, size);

	mine->waited += now(CLOCK_MONOTONIC) - since;
	return got > 0;
}

static NOINLINE void put(int fd, size_t size)
{
	static char buffer[4096];
	long since = now(CLOCK_MONOTONIC);

	check(write(fd, buffer, size) == (ssize_t)size, "write");
	mine->waited += now(CLOCK_MONOTONIC) - since;
}

/* request: stage 0 is the client, 1 to 4 the servers; pipes and socket pairs in turn. */

static int asks[6][2], answers[6][2];

static void connect_stage(int stage)
{
	if (stage % 2) {
		check(!pipe(asks[stage]) && !pipe(answers[stage]), "pipe");
	} else {
		int pair[2];

		check(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
		asks[stage][1] = answers[stage][0] = pair[0];
		asks[stage][0] = answers[stage][1] = pair[1];
	}
}

static NOINLINE void handle(int stage)
{
	if (stage == 4)
		nap(parameters[1]);
	compute(parameters[2 + stage]);
	if (stage < 4) {
		put(asks[stage + 1][1], 1);
		check(take(answers[stage + 1][0], 1), "answer");
	}
}

static void serve(int stage)
{
	char comm[16];

	snprintf(comm, sizeof(comm), "server-%c", 'a' + stage - 1);
	pin(stage);
	begin(stage, comm);
	for (long round = 0; round < parameters[0]; round++) {
		check(take(asks[stage][0], 1), "question");
		handle(stage);
		put(answers[stage][1], 1);
	}
	end();
	_exit(0);
}

static int request(void)
{
	for (int stage = 1; stage < 5; stage++)
		connect_stage(stage);
	for (int stage = 1; stage < 5; stage++)
		if (!fork())
			serve(stage);
	pin(0); /* no one is preempted by the one that it asks */
	usleep(20000); /* all servers wait */
	begin(0, "client");
	for (long round = 0; round < parameters[0]; round++)
		handle(0);
	end();
	return 5;
}

/* pipeline */

#define ITEM 1024

static int pipes[4][2];

static NOINLINE void third_stage(void)
{
	compute(parameters[3]);
}

static void stage(int number)
{
	char comm[16];

	snprintf(comm, sizeof(comm), "stage-%d", number + 1);
	begin(number, comm);
	for (long item = 0; item < parameters[0]; item++) {
		if (number > 0)
			check(take(pipes[number - 1][0], ITEM), "read");
		if (number == 2)
			third_stage();
		else
			nap(parameters[1 + number]);
		if (number < 3)
			put(pipes[number][1], ITEM);
	}
	end();
	_exit(0);
}

static int pipeline(void)
{
	for (int at = 0; at < 3; at++) {
		check(!pipe(pipes[at]), "pipe");
		fcntl(pipes[at][1], F_SETPIPE_SZ, 4096);
	}
	for (int at = 0; at < 4; at++)
		if (!fork())
			stage(at);
	return 4;
}

/* convoy: a lock with a queue; who lets it go hands it to the next. */

static atomic_uint next_ticket, turns[1 << 16];

static NOINLINE unsigned int lock(void)
{
	unsigned int ticket = atomic_fetch_add(&next_ticket, 1);
	long since = now(CLOCK_MONOTONIC);

	while (!atomic_load(&turns[ticket]))
		syscall(SYS_futex, &turns[ticket], FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	mine->waited += now(CLOCK_MONOTONIC) - since;
	return ticket;
}

static NOINLINE void unlock(unsigned int ticket)
{
	atomic_store(&turns[ticket + 1], 1);
	syscall(SYS_futex, &turns[ticket + 1], FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static NOINLINE void critical_section(void)
{
	compute(parameters[2]);
}

static void *convoy_thread(void *row)
{
	begin((long)row, "worker");
	for (long round = 0; round < parameters[0]; round++) {
		unsigned int ticket = lock();

		critical_section();
		unlock(ticket);
	}
	end();
	return NULL;
}

static int convoy(void)
{
	pthread_t threads[MOST];

	atomic_store(&turns[0], 1);
	for (long at = 0; at < parameters[1]; at++)
		pthread_create(&threads[at], NULL, convoy_thread, (void *)at);
	for (long at = 0; at < parameters[1]; at++)
		pthread_join(threads[at], NULL);
	return parameters[1];
}

/* hog */

static atomic_bool over;

static void *hog_thread(void *row)
{
	begin((long)row, "hog");
	while (!over)
		compute(1000);
	end();
	return NULL;
}

static NOINLINE void victim_work(void)
{
	compute(parameters[2]);
}

static int hog(void)
{
	pthread_t threads[MOST];

	pin(sched_getcpu());
	for (long at = 0; at < parameters[3]; at++)
		pthread_create(&threads[at], NULL, hog_thread, (void *)(at + 1));
	begin(0, "victim");
	for (long round = 0; round < parameters[0]; round++) {
		nap(parameters[1]);
		victim_work();
	}
	end();
	over = true;
	for (long at = 0; at < parameters[3]; at++)
		pthread_join(threads[at], NULL);
	return 1 + parameters[3];
}

/* barrier */

static pthread_barrier_t meeting;

static NOINLINE void late_work(void)
{
	compute(parameters[3]);
}

static void *barrier_thread(void *row)
{
	begin((long)row, row ? "punctual" : "late");
	for (long round = 0; round < parameters[0]; round++) {
		long since;

		if (row)
			nap(parameters[2]);
		else
			late_work();
		since = now(CLOCK_MONOTONIC);
		pthread_barrier_wait(&meeting);
		mine->waited += now(CLOCK_MONOTONIC) - since;
	}
	end();
	return NULL;
}

static int barrier(void)
{
	pthread_t threads[MOST];

	pthread_barrier_init(&meeting, NULL, parameters[1]);
	for (long at = 0; at < parameters[1]; at++)
		pthread_create(&threads[at], NULL, barrier_thread, (void *)at);
	for (long at = 0; at < parameters[1]; at++)
		pthread_join(threads[at], NULL);
	return parameters[1];
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(void);
	} designs[] = { { "request", request }, { "pipeline", pipeline }, { "convoy", convoy },
			{ "hog", hog }, { "barrier", barrier } };
	int rows = 0;

	if (argc < 2 || argc - 2 > MOST)
		return 2;
	for (int at = 2; at < argc; at++)
		parameters[at - 2] = atol(argv[at]);
	records = mmap(NULL, sizeof(*records) * MOST, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(records != MAP_FAILED, "mmap");
	for (unsigned int at = 0; at < sizeof(designs) / sizeof(*designs); at++)
		if (!strcmp(argv[1], designs[at].name))
			rows = designs[at].run();
	while (wait(NULL) > 0)
		;
	for (int at = 0; at < rows; at++)
		printf("{\"comm\": \"%s\", \"tid\": %d, \"begin\": %ld, \"end\": %ld, \"cpu\": %ld, "
		       "\"waited\": %ld, \"slept\": %ld}\n",
		       records[at].comm, records[at].tid, records[at].begin, records[at].end, records[at].cpu,
		       records[at].waited, records[at].slept);
	return rows ? 0 : 2;
}
