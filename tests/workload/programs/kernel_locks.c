/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four threads that want one lock of the kernel, for some time: kernel_locks KIND SECONDS DIRECTORY
 *
 * write	i_rwsem of DIRECTORY/file
 * map		mmap_lock of the process
 * unmap	mmap_lock: one replaces a mapping, the others fault in it
 * fork		mmap_lock: one forks, the others map
 * rename	s_vfs_rename_mutex of the file system, and the directories' locks
 * sleep	i_rwsem of DIRECTORY/file: its owner sleeps in a page fault, which another thread ends after 0.1 s
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE (4 << 20)
#define MAPPED (64 << 20)
#define PAGE 4096

static struct timespec end;
static const char *directory;
static char *buffer, *shared;
static int file;

static int goes_on(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec);
}

static void *writer(void *unused)
{
	prctl(PR_SET_NAME, "writer");
	while (goes_on())
		if (pwrite(file, buffer, SIZE, 0) != SIZE)
			exit(1);
	return unused;
}

static void *mapper(void *unused)
{
	char *memory;

	prctl(PR_SET_NAME, "mapper");
	while (goes_on()) {
		memory = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
			      -1, 0);
		munmap(memory, MAPPED);
	}
	return unused;
}

static void *unmapper(void *number)
{
	prctl(PR_SET_NAME, number ? "faulter" : "unmapper");
	for (long page = 0; goes_on(); page += 7919)
		if (number)
			((volatile char *)shared)[page % (MAPPED / 4096) * 4096] = 1;
		else
			mmap(shared, MAPPED, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_FIXED, -1, 0);
	return NULL;
}

static void *forker(void *number)
{
	pid_t child;

	prctl(PR_SET_NAME, number ? "mapper" : "forker");
	while (goes_on()) {
		if (number) {
			munmap(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);
			continue;
		}
		child = fork();
		if (!child)
			_exit(0);
		waitpid(child, NULL, 0);
	}
	return NULL;
}

static void *renamer(void *number)
{
	char names[2][256];
	long from = 0;

	prctl(PR_SET_NAME, "renamer");
	for (int side = 0; side < 2; side++)
		snprintf(names[side], sizeof(names[side]), "%s/%d/%ld", directory, side, (long)number);
	close(open(names[0], O_CREAT | O_RDWR, 0600));
	for (; goes_on(); from = !from)
		rename(names[from], names[!from]);
	return NULL;
}

/* Writes from memory that has to be faulted in; the lock of the file is held meanwhile. */
static void *sleeper(void *number)
{
	static int faults;
	static char *missing;
	struct uffdio_api api = {UFFD_API, 0, 0};
	struct uffdio_register range = {{0, PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
	struct uffdio_zeropage zero = {{0, PAGE}, 0, 0};
	struct uffd_msg message;

	if (!number) {
		prctl(PR_SET_NAME, "owner");
		missing = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		range.range.start = (unsigned long)missing;
		faults = syscall(SYS_userfaultfd, 0);
		if (ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range))
			exit(1);
		for (; goes_on(); madvise(missing, PAGE, MADV_DONTNEED))
			pwrite(file, missing, PAGE, 0);
		exit(0);
	}
	usleep(10000);
	prctl(PR_SET_NAME, number == (void *)1 ? "server" : "writer");
	while (number == (void *)1) {
		read(faults, &message, sizeof(message));
		usleep(100000);
		zero.range.start = (unsigned long)missing;
		ioctl(faults, UFFDIO_ZEROPAGE, &zero);
	}
	for (; goes_on(); usleep(1000))
		pwrite(file, buffer, PAGE, 0);
	return NULL;
}

int main(int argc, char **argv)
{
	void *(*work)(void *) = *argv[1] == 'w' ? writer : *argv[1] == 'm' ? mapper :
				*argv[1] == 'u' ? unmapper : *argv[1] == 'f' ? forker :
				*argv[1] == 's' ? sleeper : renamer;
	pthread_t threads[4];
	char path[256];

	(void)argc;
	directory = argv[3];
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += atoi(argv[2]);
	for (int side = 0; side < 2; side++) {
		snprintf(path, sizeof(path), "%s/%d", directory, side);
		mkdir(path, 0700);
	}
	snprintf(path, sizeof(path), "%s/file", directory);
	file = open(path, O_RDWR | O_CREAT, 0600);
	buffer = malloc(SIZE);
	memset(buffer, 1, SIZE);
	shared = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	for (long number = 0; number < 4; number++)
		pthread_create(&threads[number], NULL, work, (void *)number);
	for (int number = 0; number < 4; number++)
		pthread_join(threads[number], NULL);
	return 0;
}
