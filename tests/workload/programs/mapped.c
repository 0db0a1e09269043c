// SPDX-License-Identifier: Apache-2.0
/* Write a file of PAGES pages, forget them, map the file and touch each page once, in a random order: mapped FILE. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 2048, SIZE = 4096 };

int main(int argc, char **argv)
{
	int fd = open(argv[argc - 1], O_RDWR | O_CREAT, 0600), order[PAGES];
	char page[SIZE] = "x";

	for (int i = 0; i < PAGES; i++) {
		if (write(fd, page, SIZE) != SIZE)
			return 1;
		order[i] = i;
	}
	fsync(fd);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	char *file = mmap(NULL, PAGES * SIZE, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	madvise(file, PAGES * SIZE, MADV_RANDOM);
	for (int i = PAGES - 1; i > 0; i--) {
		int other = rand() % (i + 1), page = order[i];
		order[i] = order[other], order[other] = page;
	}
	for (int i = 0; i < PAGES; i++)
		*(volatile char *)(file + order[i] * SIZE);
}
