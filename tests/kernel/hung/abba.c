/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two threads that wait for each other's mutex, without frame pointers, and main(), which waits for one.
 * With -DSECONDS they wait so long and then end.
 */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER, second = PTHREAD_MUTEX_INITIALIZER;

__attribute__((noinline)) static void take(pthread_mutex_t *mutex, int depth)
{
	if (depth)
		take(mutex, depth - 1);
	else
#ifdef SECONDS
		pthread_mutex_timedlock(mutex, &(struct timespec){.tv_sec = time(NULL) + SECONDS});
#else
		pthread_mutex_lock(mutex);
#endif
	__asm__ volatile("");
}

static void *one(void *unused)
{
	take(&first, 0);
	usleep(200000);
	take(&second, 2);
	return unused;
}

static void *two(void *unused)
{
	take(&second, 0);
	usleep(200000);
	take(&first, 3);
	return unused;
}

int main(void)
{
	pthread_t threads[2];

	pthread_create(&threads[0], NULL, one, NULL);
	pthread_create(&threads[1], NULL, two, NULL);
	pthread_join(threads[0], NULL);
	return 0;
}
