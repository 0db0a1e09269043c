/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `perf bench sched pipe` with each side on its own CPU: pipe_pair CPU CPU OPERATIONS
 *
 * Two processes pass a number back and forth. Prints the seconds of all operations, each of which is two wake-ups.
 * Without fixed CPUs the scheduler decides whether both share one, and with it how long an operation takes.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
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

static void take(int fd)
{
	int number;

	if (read(fd, &number, sizeof(number)) != sizeof(number))
		fail("read");
}

static void give(int fd)
{
	int number = 0;

	if (write(fd, &number, sizeof(number)) != sizeof(number))
		fail("write");
}

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	int there[2], back[2], status = 0;
	long operations, i;
	double begin;
	pid_t child;

	if (argc != 4 || (operations = atol(argv[3])) < 1) {
		fprintf(stderr, "usage: pipe_pair CPU CPU OPERATIONS\n");
		return 2;
	}
	if (pipe(there) || pipe(back))
		fail("pipe");
	child = fork();
	if (child < 0)
		fail("fork");
	stay_on(atoi(argv[child ? 1 : 2]));
	begin = now();
	for (i = 0; i < operations; i++) {
		if (child) {
			give(there[1]);
			take(back[0]);
		} else {
			take(there[0]);
			give(back[1]);
		}
	}
	if (!child)
		return 0;
	if (waitpid(child, &status, 0) < 0 || status)
		return 1;
	printf("%.6f\n", now() - begin);
	return 0;
}
