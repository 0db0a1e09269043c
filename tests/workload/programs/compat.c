/* SPDX-License-Identifier: Apache-2.0 */
/* A read() by the system call of 32-bit programs, which waits. */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

static int ends[2];

static void *end(void *unused)
{
	usleep(300000);
	return write(ends[1], "x", 1) == 1 ? unused : NULL;
}

int main(void)
{
	char *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	pthread_t thread;
	long result = 3;	/* read() of 32-bit programs */

	if (pipe(ends))
		return 1;
	pthread_create(&thread, NULL, end, NULL);
	__asm__ volatile("int $0x80" : "+a"(result) : "b"(ends[0]), "c"(low), "d"(1L) : "memory");
	pthread_join(thread, NULL);
	return result != 1;
}
