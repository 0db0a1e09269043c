// SPDX-License-Identifier: Apache-2.0
/*
 * A thread that is late although nothing blocks it: "metronome" sleeps 5 ms and works 2 ms in turns, while
 * other threads keep every CPU busy.
 *
 *	metronome [SECONDS [BUSY-THREADS-A-CPU]]
 *
 * Build: gcc -O2 -g -fno-omit-frame-pointer -pthread -o metronome metronome.c
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define TICK_NS 5000000

static volatile int stop;

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void __attribute__((noinline)) work_for(long long ns)
{
	for (long long until = now_ns() + ns; now_ns() < until;)
		;
}

static void *crunch(void *unused)
{
	(void)unused;
	pthread_setname_np(pthread_self(), "cruncher");
	while (!stop)
		work_for(1000000);
	return NULL;
}

static void __attribute__((noinline)) wait_for_tick(long long at_ns)
{
	struct timespec at = {.tv_sec = at_ns / 1000000000, .tv_nsec = at_ns % 1000000000};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	long threads = sysconf(_SC_NPROCESSORS_ONLN) * (argc > 2 ? atoi(argv[2]) : 3);
	long long begin = now_ns(), at, late = 0;
	int ticks = 0;

	for (long i = 0; i < threads; i++) {
		pthread_t thread;

		pthread_create(&thread, NULL, crunch, NULL);
	}
	for (; now_ns() - begin < seconds * 1e9; ticks++) {
		at = now_ns() + TICK_NS;
		wait_for_tick(at);
		late += now_ns() - at;
		work_for(2000000);
	}
	stop = 1;
	printf("%d ticks, %.2f ms late on average\n", ticks, late / 1e6 / ticks);
	return 0;
}
