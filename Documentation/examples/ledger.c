// SPDX-License-Identifier: Apache-2.0
/*
 * A service that is slow while its CPU is idle: workers book payments into a journal that must be on the disk
 * before a payment counts. The journal is written and synced under the lock that guards the balance.
 *
 *	ledger DIRECTORY [PAYMENTS]		syncs while holding the lock
 *	ledger --apart DIRECTORY [PAYMENTS]	lets go of the lock first; each worker has a journal of its own
 *
 * Build: gcc -O2 -g -fno-omit-frame-pointer -pthread -o ledger ledger.c
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WORKERS 4

static pthread_mutex_t balance_lock = PTHREAD_MUTEX_INITIALIZER;
static long balance;
static int payments = 200, apart, journals[WORKERS];

static void __attribute__((noinline)) sync_journal(int journal)
{
	static const char entry[4096] = "payment";

	if (write(journal, entry, sizeof(entry)) != sizeof(entry) || fsync(journal)) {
		perror("journal");
		exit(1);
	}
}

static void __attribute__((noinline)) book_payment(int worker)
{
	pthread_mutex_lock(&balance_lock);
	balance += 1;
	if (!apart)
		sync_journal(journals[0]);
	pthread_mutex_unlock(&balance_lock);
	if (apart)
		sync_journal(journals[worker]);
}

static void *work(void *number)
{
	int worker = (int)(long)number;
	char name[16];

	snprintf(name, sizeof(name), "worker-%d", worker);
	pthread_setname_np(pthread_self(), name);
	for (int i = 0; i < payments; i++)
		book_payment(worker);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[WORKERS];
	struct timespec begin, end;
	char path[4096];

	if (argc > 1 && !strcmp(argv[1], "--apart")) {
		apart = 1;
		argc--, argv++;
	}
	if (argc < 2) {
		fprintf(stderr, "usage: ledger [--apart] DIRECTORY [PAYMENTS]\n");
		return 2;
	}
	if (argc > 2)
		payments = atoi(argv[2]);
	for (int i = 0; i < WORKERS; i++) {
		snprintf(path, sizeof(path), "%s/journal-%d", argv[1], i);
		journals[i] = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		if (journals[i] < 0) {
			perror(path);
			return 1;
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (long i = 0; i < WORKERS; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	for (int i = 0; i < WORKERS; i++)
		pthread_join(threads[i], NULL);
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("%ld payments in %.0f ms\n", balance,
	       (end.tv_sec - begin.tv_sec) * 1e3 + (end.tv_nsec - begin.tv_nsec) / 1e6);
	return 0;
}
