/* SPDX-License-Identifier: Apache-2.0 */
/* Naps in turn below ten calls that are others each time, above a frame of 5 KB, and below main() alone. */
#include <string.h>
#include <time.h>

enum { CALLS = 10, ROOM = 5000 };

static void __attribute__((noinline, noclone)) nap(void)
{
	struct timespec pause = {.tv_nsec = 1000000};

	nanosleep(&pause, 0);
	asm volatile("");	/* no tail call: each function keeps its frame */
}

static void __attribute__((noinline, noclone)) left(int path, int calls);

static void __attribute__((noinline, noclone)) right(int path, int calls)
{
	if (!calls)
		nap();
	else if (path & 1)
		right(path >> 1, calls - 1);
	else
		left(path >> 1, calls - 1);
	asm volatile("");
}

static void left(int path, int calls)
{
	if (!calls)
		nap();
	else if (path & 1)
		right(path >> 1, calls - 1);
	else
		left(path >> 1, calls - 1);
	asm volatile("nop");	/* or the compiler makes one function of both */
}

static void __attribute__((noinline, noclone)) roomy(int path)
{
	char room[ROOM];

	memset(room, 0, ROOM);
	asm volatile("" ::"r"(room) : "memory");
	left(path, CALLS);
	asm volatile("" ::"r"(room) : "memory");
}

int main(void)
{
	for (int path = 0; path < 1 << CALLS; path++) {
		roomy(path);
		nap();
	}
	return 0;
}
