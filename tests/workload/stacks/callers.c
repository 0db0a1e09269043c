/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short waits that are the same but for who called: two functions with frames of the same size, in turn, in
 * two threads. Prints how long each function's waits took, in ns.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define THREADS 2

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void __attribute__((noinline, noclone)) nap(long us)
{
	struct timespec time = {.tv_nsec = us * 1000};

	nanosleep(&time, NULL);
	asm volatile("");	/* no tail call: each function keeps its frame */
}

static long long __attribute__((noinline, noclone)) from_one(long rounds)
{
	long long begin = now();

	for (long i = 0; i < rounds; i++)
		nap(100);
	return now() - begin;
}

static long long __attribute__((noinline, noclone)) from_two(long rounds)
{
	long long begin = now();

	for (long i = 0; i < rounds; i++)
		nap(300);
	return now() - begin;
}

static void *__attribute__((noinline, noclone)) in_turn(void *times)
{
	long long *sums = times;

	for (int i = 0; i < 50; i++) {
		sums[0] += from_one(4);
		sums[1] += from_two(4);
	}
	return NULL;
}

int main(void)
{
	static long long times[THREADS][2];
	pthread_t other;

	if (pthread_create(&other, NULL, in_turn, times[1]))
		return 1;
	in_turn(times[0]);
	pthread_join(other, NULL);
	printf("%lld %lld\n", times[0][0] + times[1][0], times[0][1] + times[1][1]);
	return 0;
}
