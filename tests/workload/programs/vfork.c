// SPDX-License-Identifier: Apache-2.0
/* Two processes wait as vfork() does: one until its child exits, one longer than the program. Their ids are printed. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void nap(void) { nanosleep(&(struct timespec){0, 60000000}, NULL); }

int main(void)
{
	volatile pid_t *hanging = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t child = fork(), parent;

	if (!child)
		_exit(0);
	child = vfork();
	if (!child) {
		nap();
		_exit(0);
	}
	parent = fork();
	if (!parent) {
		alarm(3);
		if (!vfork()) {
			*hanging = getpid();
			alarm(3);
			pause();
		}
		_exit(0);
	}
	while (!*hanging)
		nap();
	nap();
	printf("%d %d\n%d %d\n", getpid(), child, parent, *hanging);
}
