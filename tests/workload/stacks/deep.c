/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits of 2 ms at the end of a recursion that takes 12, 24 and 100 KB of stack, in two threads, each ten times.
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static void __attribute__((noinline, noclone)) nap(void)
{
	struct timespec time = {.tv_nsec = 2000000};

	nanosleep(&time, NULL);
	asm volatile("");	/* no tail call: each function keeps its frame */
}

static void __attribute__((noinline, noclone)) descend(long depth)
{
	char room[1000];

	asm volatile("" : : "r"(room) : "memory");
	if (depth)
		descend(depth - 1);
	else
		nap();
	asm volatile("" : : "r"(room) : "memory");
}

#define LEVEL(name, kilobytes)						\
	static void __attribute__((noinline, noclone)) name(void)	\
	{								\
		descend(kilobytes);					\
		asm volatile("");					\
	}

LEVEL(of_12_kb, 12)
LEVEL(of_24_kb, 24)
LEVEL(of_100_kb, 100)

static void *__attribute__((noinline, noclone)) in_turn(void *unused)
{
	for (int i = 0; i < 10; i++) {
		of_12_kb();
		of_24_kb();
		of_100_kb();
	}
	return unused;
}

int main(void)
{
	pthread_t other;

	if (pthread_create(&other, NULL, in_turn, NULL))
		return 1;
	in_turn(NULL);
	return pthread_join(other, NULL);
}
