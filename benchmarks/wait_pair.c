/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two tasks that wait for each other in turn: wait_pair HOW CPU CPU OPERATIONS
 *
 *	pipe	processes pass a number back and forth, as those of `perf bench sched pipe`
 *	epoll	the same, but each waits in epoll_wait() before it reads
 *	mutex	threads give each other mutexes of glibc, so that each wait is for a lock with an owner
 *
 * Prints the seconds of all operations, each of which is two wake-ups. Without fixed CPUs the scheduler decides
 * whether both share one, and with it how long an operation takes.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void stay_on(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		fail("sched_setaffinity");
}

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

static int watch(int fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	int epoll = epoll_create1(0);

	if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
		fail("epoll");
	return epoll;
}

static void take(int fd, int epoll)
{
	struct epoll_event event;
	int number;

	if (epoll >= 0 && epoll_wait(epoll, &event, 1, -1) != 1)
		fail("epoll_wait");
	if (read(fd, &number, sizeof(number)) != sizeof(number))
		fail("read");
}

static void give(int fd)
{
	int number = 0;

	if (write(fd, &number, sizeof(number)) != sizeof(number))
		fail("write");
}

static double pipes(const int *cpus, long operations, int with_epoll)
{
	int there[2], back[2], epoll, mine, status = 0;
	double begin;
	pid_t child;
	long i;

	if (pipe(there) || pipe(back))
		fail("pipe");
	child = fork();
	if (child < 0)
		fail("fork");
	stay_on(cpus[child ? 0 : 1]);
	mine = child ? back[0] : there[0];
	epoll = with_epoll ? watch(mine) : -1;
	begin = now();
	for (i = 0; i < operations; i++) {
		if (child)
			give(there[1]);
		take(mine, epoll);
		if (!child)
			give(back[1]);
	}
	if (!child)
		_exit(0);
	if (waitpid(child, &status, 0) < 0 || status)
		exit(1);
	return now() - begin;
}

/* A mutex that another thread unlocks: not of POSIX, but of glibc. */
static pthread_mutex_t turns[2] = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER };

struct side {
	int number, cpu;
	long operations;
};

static void *alternate(void *argument)
{
	const struct side *side = argument;
	long i;

	stay_on(side->cpu);
	for (i = 0; i < side->operations; i++) {
		pthread_mutex_lock(&turns[side->number]);
		pthread_mutex_unlock(&turns[!side->number]);
	}
	return NULL;
}

static double mutexes(const int *cpus, long operations)
{
	struct side sides[2] = { { 0, cpus[0], operations }, { 1, cpus[1], operations } };
	double begin = now();
	pthread_t other;

	pthread_mutex_lock(&turns[1]);
	if (pthread_create(&other, NULL, alternate, &sides[1]))
		fail("pthread_create");
	alternate(&sides[0]);
	pthread_join(other, NULL);
	return now() - begin;
}

int main(int argc, char **argv)
{
	long operations = argc == 5 ? atol(argv[4]) : 0;
	int cpus[2];

	if (operations < 1) {
		fprintf(stderr, "usage: wait_pair pipe|epoll|mutex CPU CPU OPERATIONS\n");
		return 2;
	}
	cpus[0] = atoi(argv[2]);
	cpus[1] = atoi(argv[3]);
	printf("%.6f\n", !strcmp(argv[1], "mutex") ? mutexes(cpus, operations) :
					 pipes(cpus, operations, !strcmp(argv[1], "epoll")));
	return 0;
}
