/* SPDX-License-Identifier: Apache-2.0 */
/* A poll() whose descriptors are unmapped while it waits. */
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

static struct pollfd *fds;

static void *unmap(void *unused)
{
	usleep(20000);
	munmap(fds, 4096);
	return unused;
}

int main(void)
{
	pthread_t thread;
	int ends[2];

	if (pipe(ends))
		return 1;
	fds = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fds->fd = ends[0];
	fds->events = POLLIN;
	pthread_create(&thread, NULL, unmap, NULL);
	poll(fds, 1, 500);	/* a busy machine may be late to unmap */
	pthread_join(thread, NULL);
	return 0;
}
