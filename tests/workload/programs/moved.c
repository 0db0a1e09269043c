/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread computes next to another one on CPU 0 and then sleeps, again and again; as soon as it sleeps, it is moved to
 * CPU 1. It is moved in its queue if the kernel has left it there, because it had more time than its share. Prints its
 * id, the ms that it asked to sleep, and the kernel's run-queue delay of the thread in these sleeps, ns.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 12, SLEEP_MS = 100, WORK_MS = 40 };

static volatile int tid, sleeping, end;

static void run_on(int thread, int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(thread, sizeof(set), &set);
}

static long delay_ns(void)
{
	char path[64];
	long ran = 0, delay = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", tid);
	FILE *file = fopen(path, "r");
	if (file) {
		if (fscanf(file, "%ld %ld", &ran, &delay) != 2)
			delay = 0;
		fclose(file);
	}
	return delay;
}

static void *sleeper(void *unused)
{
	struct timespec begin, now, pause = { 0, SLEEP_MS * 1000000L };

	tid = gettid();
	for (int round = 0; round < ROUNDS; round++) {
		run_on(0, 0);
		clock_gettime(CLOCK_MONOTONIC, &begin);
		do {
			clock_gettime(CLOCK_MONOTONIC, &now);
		} while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < WORK_MS);
		sleeping = 1;
		nanosleep(&pause, NULL);
		sleeping = 0;
	}
	end = 1;
	usleep(20000);	/* for the last look */
	return unused;
}

static void *other(void *unused)
{
	run_on(0, 0);
	while (!end)
		;
	return unused;
}

int main(void)
{
	pthread_t one, two;
	long before, delayed = 0;

	pthread_create(&one, NULL, other, NULL);
	pthread_create(&two, NULL, sleeper, NULL);
	run_on(0, 1);
	while (!end) {
		if (!sleeping) {
			usleep(100);
			continue;
		}
		usleep(300);	/* it is on its way to sleep */
		before = delay_ns();
		run_on(tid, 1);
		while (sleeping && !end)
			usleep(1000);
		delayed += delay_ns() - before;
	}
	printf("%d %d %ld\n", tid, ROUNDS * SLEEP_MS, delayed);
	return 0;
}
