// SPDX-License-Identifier: Apache-2.0
/* A program that makes code while it runs: a thread sleeps below a function in anonymous executable memory.
 *
 *	jit MILLISECONDS ROUNDS
 *
 * The made function is  push %rbp; mov %rsp,%rbp; call *%rdi; pop %rbp; ret  (x86-64): it keeps a frame pointer
 * and calls what it is given. Prints its pid and the address of the function before it begins.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct timespec pause_time;

static __attribute__((noinline)) void nap(void)
{
	long result;

	/* No libc in between, whose code has no frame pointers. */
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(SYS_nanosleep), "D"(&pause_time), "S"(0)
			 : "rcx", "r11", "memory");
}

int main(int argc, char **argv)
{
	static const unsigned char code[] = { 0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3 };
	long ms = argc > 1 ? atol(argv[1]) : 10, rounds = argc > 2 ? atol(argv[2]) : 100;
	unsigned char *made;

	made = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (made == MAP_FAILED)
		return 1;
	memcpy(made, code, sizeof(code));
	printf("%d %p\n", getpid(), (void *)made);
	fflush(stdout);
	pause_time.tv_sec = ms / 1000;
	pause_time.tv_nsec = ms % 1000 * 1000000;
	while (rounds-- > 0)
		((void (*)(void (*)(void)))made)(nap);
	return 0;
}
