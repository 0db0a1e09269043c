/* SPDX-License-Identifier: Apache-2.0 */
/* Naps from two functions in turn, each below 300 levels of calls, with stacks of one size. */
#include <time.h>

static void __attribute__((noinline, noclone)) nap(void)
{
	struct timespec pause = {.tv_nsec = 2000000};

	nanosleep(&pause, 0);
	asm volatile("");	/* no tail call: each function keeps its frame */
}

static void __attribute__((noinline, noclone)) from_one(void)
{
	nap();
	asm volatile("");
}

static void __attribute__((noinline, noclone)) from_other(void)
{
	nap();
	asm volatile("nop");	/* or the compiler makes one function of both */
}

static void __attribute__((noinline, noclone)) descend(int depth, int other)
{
	if (depth)
		descend(depth - 1, other);
	else if (other)
		from_other();
	else
		from_one();
	asm volatile("");
}

int main(void)
{
	for (int round = 0; round < 40; round++)
		descend(300, round & 1);
	return 0;
}
