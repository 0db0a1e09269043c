/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that are woken before they leave the CPU, so that they do not sleep, and block at once. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic int word, blocked, done;

static void *wake(void *unused)
{
	while (!done)
		syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
	return unused;
}

static long switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_nvcsw;
}

/* Wait until woken on the way to sleep, without having slept; then block for good. */
static void *play(void *unused)
{
	long before;

	do {
		before = switches();
	} while (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0) || switches() != before);
	blocked++;
	syscall(SYS_futex, &blocked, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
	pause();
	return unused;
}

int main(void)
{
	time_t end;
	pthread_t waker, thread;
	char go;

	if (read(0, &go, 1) != 1)
		return 1;
	end = time(0) + 5;
	pthread_create(&waker, 0, wake, 0);
	for (int i = 0; i < 150 && time(0) < end; i++) {
		pthread_create(&thread, 0, play, 0);
		while (blocked == i)
			syscall(SYS_futex, &blocked, FUTEX_WAIT_PRIVATE, i, 0, 0, 0);
	}
	done = 1;
	puts("blocked");
	fflush(stdout);
	pause();
	return 0;
}
