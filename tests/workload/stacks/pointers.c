/* SPDX-License-Identifier: Apache-2.0 */
/* 100 naps in one place; the stack holds pointers into mapped memory, other ones each time. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <time.h>

#define POINTERS 64

__attribute__((noinline)) static int nap(char *memory, unsigned round)
{
	char *volatile kept[POINTERS];
	struct timespec pause = {.tv_nsec = 2000000};
	unsigned i;

	for (i = 0; i < POINTERS; i++)
		kept[i] = memory + (round * 1031 + i * 17) % (1 << 20) / 8 * 8 + 1 + round % 7;
	nanosleep(&pause, 0);
	return kept[round % POINTERS] != 0;
}

int main(void)
{
	char *memory = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned round, sum = 0;

	for (round = 0; round < 100; round++)
		sum += nap(memory, round);
	return sum != 100;
}
