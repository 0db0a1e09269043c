/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads pass a byte to and fro, three others want the CPU; each prints its schedstat as it ends. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#include <fcntl.h>
#include <time.h>
#include <sys/syscall.h>

static int pipes[2][2];
static pthread_barrier_t done;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

/*
 * Switch before reading: the time on the CPU is brought up to date then. Go before all others, so that
 * the thread does not wait for a CPU between this and its end.
 */
static void show(void)
{
	struct sched_param first = {.sched_priority = 1};
	struct timespec nap = {0, 1000};
	char text[100] = "", path[100];
	int fd;

	pthread_mutex_lock(&turn);
	sched_setscheduler(0, SCHED_FIFO, &first);
	nanosleep(&nap, 0);
	fd = open("/proc/thread-self/schedstat", O_RDONLY);
	if (read(fd, text, sizeof(text) - 1) > 0)
		dprintf(1, "%ld %s", syscall(SYS_gettid), text);
	close(fd);
	pthread_mutex_unlock(&turn);
}

static void *play(void *side)
{
	long me = (long)side;
	char ball = 0;

	for (int i = 0; i < 30000; i++) {
		if (me && read(pipes[0][0], &ball, 1) != 1)
			break;
		if (write(pipes[me][1], &ball, 1) != 1)
			break;
		if (!me && read(pipes[1][0], &ball, 1) != 1)
			break;
	}
	pthread_barrier_wait(&done);
	show();
	return 0;
}

static void *burn(void *none)
{
	for (volatile long i = 0; i < 300000000; i++)
		;
	pthread_barrier_wait(&done);
	show();
	return none;
}

int main(void)
{
	pthread_t threads[5];

	pthread_barrier_init(&done, 0, 5);
	if (pipe(pipes[0]) || pipe(pipes[1]))
		return 1;
	for (long i = 0; i < 5; i++)
		pthread_create(&threads[i], 0, i < 2 ? play : burn, (void *)i);
	for (int i = 0; i < 5; i++)
		pthread_join(threads[i], 0);
	return 0;
}
