/* SPDX-License-Identifier: Apache-2.0 */
/*
 * napper: waits by bare system calls, so that its user stacks are whole, and counts them as the kernel does.
 *
 * It says "ready", waits for a line on its input, does its rounds, prints one line for each kind of wait and
 * waits for the end of its input:
 *
 *	<kind> <pid> <tid> <system call> <voluntary switches> <involuntary ones> <ns waited>
 *
 * Waiting times are taken by CLOCK_MONOTONIC around the calls.
 *
 * kinds: nap (2 ms, below 100 levels of recursion), blink (300 us), futex (3 ms until its time-out),
 * pipe (a byte that comes after 2 ms), vfork (a child that naps for 3 ms, waited for uninterruptibly),
 * child (the naps of a forked process), spin (two threads that share a CPU and never wait).
 *
 * usage: napper ROUNDS [again]	with "again" it executes itself first
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct tally {
	const char *kind;
	long number, waits, preemptions, ns;
};

static int rounds;

#ifndef SYS_vfork
#define SYS_vfork SYS_clone	/* arm64: CLONE_VM | CLONE_VFORK */
#endif

/* libc's wrappers have no frame pointers and would hide their callers. */
static inline __attribute__((always_inline)) long call(long number, long a, long b, long c, long d)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d;
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return result;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c, x3 __asm__("x3") = d;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
#endif
}

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void count(struct tally *tally, int sign)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	tally->waits += sign * usage.ru_nvcsw;
	tally->preemptions += sign * usage.ru_nivcsw;
}

static void start(struct tally *tally)
{
	count(tally, -1);
	tally->ns -= now();
}

static void stop(struct tally *tally)
{
	tally->ns += now();
	count(tally, 1);
}

static void report(struct tally *tally)
{
	printf("%s %d %d %ld %ld %ld %ld\n", tally->kind, getpid(), gettid(), tally->number, tally->waits,
	       tally->preemptions, tally->ns);
	fflush(stdout);
}

__attribute__((noinline)) void doze(long us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000};

	call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, (long)&t, 0);
}

__attribute__((noinline)) void dig(int depth, long us)
{
	if (depth)
		dig(depth - 1, us);
	else
		doze(us);
	__asm__ volatile("");
}

static void nap(struct tally *tally, int depth, long us, int times)
{
	for (int i = 0; i < times; i++) {
		start(tally);
		dig(depth, us);
		stop(tally);
	}
}

static void *nap_thread(void *unused)
{
	struct tally tally = {"nap", SYS_clock_nanosleep};

	nap(&tally, 100, 2000, rounds);
	report(&tally);
	return unused;
}

static void *blink_thread(void *unused)
{
	struct tally tally = {"blink", SYS_clock_nanosleep};

	nap(&tally, 10, 300, 5 * rounds);
	report(&tally);
	return unused;
}

static void *futex_thread(void *unused)
{
	struct tally tally = {"futex", SYS_futex};
	struct timespec t = {0, 3000000};
	int word = 0;

	for (int i = 0; i < rounds; i++) {
		start(&tally);
		call(SYS_futex, (long)&word, FUTEX_WAIT_PRIVATE, 0, (long)&t);
		stop(&tally);
	}
	report(&tally);
	return unused;
}

static int ask[2], answer[2];

static void *feeder_thread(void *unused)
{
	char byte;

	while (read(ask[0], &byte, 1) == 1) {
		doze(2000);
		if (write(answer[1], &byte, 1) != 1)
			break;
	}
	return unused;
}

static void *pipe_thread(void *unused)
{
	struct tally tally = {"pipe", SYS_read};
	char byte = 0;

	for (int i = 0; i < rounds; i++) {
		if (write(ask[1], &byte, 1) != 1)
			break;
		start(&tally);
		call(SYS_read, answer[0], (long)&byte, 1, 0);
		stop(&tally);
	}
	close(ask[1]);
	report(&tally);
	return unused;
}

static void *vfork_thread(void *unused)
{
	struct tally tally = {"vfork", SYS_vfork};

	for (int i = 0; i < rounds; i++) {
		start(&tally);
		int child = vfork();
		if (!child) {
			doze(3000);
			_exit(0);
		}
		stop(&tally);
		waitpid(child, NULL, 0);
	}
	report(&tally);
	return unused;
}

static void *spin_thread(void *unused)
{
	struct tally tally = {"spin", -1};
	cpu_set_t cpu;

	CPU_ZERO(&cpu);
	CPU_SET(0, &cpu);
	pthread_setaffinity_np(pthread_self(), sizeof(cpu), &cpu);
	start(&tally);
	for (long end = now() + 100000000; now() < end;)
		;
	stop(&tally);
	tally.ns = 0;
	report(&tally);
	return unused;
}

static void child(void)
{
	struct tally tally = {"child", SYS_clock_nanosleep};

	if (!fork()) {
		nap(&tally, 100, 2000, rounds);
		report(&tally);
		_exit(0);
	}
	wait(NULL);
}

int main(int argc, char **argv)
{
	void *(*kinds[])(void *) = {nap_thread, blink_thread, futex_thread, feeder_thread,
				    pipe_thread, vfork_thread, spin_thread, spin_thread};
	const int n = sizeof(kinds) / sizeof(*kinds);
	pthread_t threads[n];
	pthread_attr_t small;
	char line[8];

	if (argc > 2) {
		doze(5000);
		execl("/proc/self/exe", argv[0], argv[1], NULL);
		return 1;
	}
	rounds = argc > 1 ? atoi(argv[1]) : 10;
	mlockall(MCL_CURRENT | MCL_FUTURE);	/* no waits for pages, */
	now();					/* not for the vdso's either */
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 1 << 18);
	puts("ready");
	fflush(stdout);
	if (read(0, line, sizeof(line)) < 0 || pipe(ask) || pipe(answer))
		return 1;
	for (int i = 0; i < n; i++)
		pthread_create(&threads[i], &small, kinds[i], NULL);
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	child();
	puts("done");
	fflush(stdout);
	while (read(0, line, sizeof(line)) > 0)
		;
	return 0;
}
