// SPDX-License-Identifier: Apache-2.0
/*
 * A program that stops and never goes on: two threads move money between two accounts, each locking the
 * account that it takes from first.
 *
 *	transfer [SECONDS]	gives up after so long (default 2)
 *
 * Build: gcc -O2 -g -fno-omit-frame-pointer -pthread -o transfer transfer.c
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct account {
	pthread_mutex_t lock;
	long balance;
};

static struct account savings = {PTHREAD_MUTEX_INITIALIZER, 1000};
static struct account current = {PTHREAD_MUTEX_INITIALIZER, 1000};
static volatile long transfers;

static void __attribute__((noinline)) transfer(struct account *from, struct account *to)
{
	pthread_mutex_lock(&from->lock);
	usleep(1000);		/* something else takes a moment */
	pthread_mutex_lock(&to->lock);
	from->balance--, to->balance++;
	transfers++;
	pthread_mutex_unlock(&to->lock);
	pthread_mutex_unlock(&from->lock);
}

static void *save(void *unused)
{
	pthread_setname_np(pthread_self(), "saver");
	for (;;)
		transfer(&current, &savings);
	return unused;
}

static void *spend(void *unused)
{
	pthread_setname_np(pthread_self(), "spender");
	for (;;)
		transfer(&savings, &current);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	pthread_create(&thread, NULL, save, NULL);
	pthread_create(&thread, NULL, spend, NULL);
	usleep((argc > 1 ? atof(argv[1]) : 2) * 1e6);
	printf("%ld transfers\n", transfers);
	return 0;
}
