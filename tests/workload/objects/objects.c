/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for known objects: usage: objects FILE ROUNDS
 *
 * Two threads, "left" and "right", take turns: one holds a lock until the other waits for it. A
 * child process, "server", answers over TCP, a Unix socket and two pipes, when the other side
 * waits. Each round prints a line:
 *
 *	KIND WAITER HOLDER BEGIN_NS END_NS OBJECT...
 *
 * WAITER and HOLDER are thread ids (HOLDER 0: nobody on this side), times are of CLOCK_MONOTONIC,
 * and OBJECT is the address of the futex, two endpoints, an inode, or the inode and path of a file.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define HOLD_US 2000

pthread_mutex_t ledger_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t journal_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t *heap_lock, pi_lock;
pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
pthread_cond_t ready = PTHREAD_COND_INITIALIZER;
static pthread_mutex_t ready_lock = PTHREAD_MUTEX_INITIALIZER;
sem_t slots;

static _Atomic int turn;
static _Atomic long tids[2];
static int is_ready, rounds;

static long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

/* Sleep, at least once, until a thread sleeps. */
static void until_asleep(long tid)
{
	char path[32], text[256];
	ssize_t size;
	int fd;

	snprintf(path, sizeof(path), "/proc/%ld/stat", tid);
	do {
		usleep(HOLD_US);
		fd = open(path, O_RDONLY);
		size = read(fd, text, sizeof(text) - 1);
		close(fd);
		text[size > 0 ? size : 0] = 0;
	} while (size > 0 && !strstr(text, ") S "));
}

static void spin_until(int value)
{
	while (turn < value)
		;
}

/* How each kind of lock is taken by the holder, waited for, and released. */
struct kind {
	const char *name;
	void *word;		/* of the futex */
	void (*hold)(void);
	void (*release)(void);
	void (*wait)(void);
	int is_held;		/* somebody holds it meanwhile */
};

#define MUTEX(name, lock) \
	static void hold_##name(void) { pthread_mutex_lock(lock); } \
	static void release_##name(void) { pthread_mutex_unlock(lock); } \
	static void wait_##name(void) { pthread_mutex_lock(lock); pthread_mutex_unlock(lock); }

MUTEX(ledger, &ledger_lock)
MUTEX(journal, &journal_lock)
MUTEX(heap, heap_lock)
MUTEX(pi, &pi_lock)

static void hold_write(void) { pthread_rwlock_wrlock(&table_lock); }
static void release_rwlock(void) { pthread_rwlock_unlock(&table_lock); }
static void wait_read(void) { pthread_rwlock_rdlock(&table_lock); pthread_rwlock_unlock(&table_lock); }
static void nothing(void) {}
static void signal_ready(void)
{
	pthread_mutex_lock(&ready_lock);
	is_ready = 1;
	pthread_cond_signal(&ready);
	pthread_mutex_unlock(&ready_lock);
}
static void wait_ready(void)
{
	pthread_mutex_lock(&ready_lock);
	while (!is_ready)
		pthread_cond_wait(&ready, &ready_lock);
	is_ready = 0;
	pthread_mutex_unlock(&ready_lock);
}
static void post(void) { sem_post(&slots); }
static void wait_slot(void) { sem_wait(&slots); }

static struct kind kinds[] = {
	{ "ledger", &ledger_lock, hold_ledger, release_ledger, wait_ledger, 1 },
	{ "journal", &journal_lock, hold_journal, release_journal, wait_journal, 1 },
	{ "heap", NULL, hold_heap, release_heap, wait_heap, 1 },
	{ "pi", &pi_lock, hold_pi, release_pi, wait_pi, 1 },
	{ "rwlock", &table_lock, hold_write, release_rwlock, wait_read, 1 },
	{ "cond", &ready, nothing, signal_ready, wait_ready, 0 },
	{ "sem", &slots, nothing, post, wait_slot, 0 },
};

#define KINDS ((int)(sizeof(kinds) / sizeof(kinds[0])))

/* A step has two numbers: 2n while it is prepared, 2n + 1 while the one holds and the other waits. */
static void *side(void *number)
{
	int me = (int)(long)number, step = 0;

	prctl(PR_SET_NAME, me ? "right" : "left");
	tids[me] = gettid();
	while (!tids[!me])
		;
	for (int at = 0; at < KINDS; at++) {
		for (int round = 0; round < rounds; round++, step++) {
			struct kind *kind = &kinds[at];

			spin_until(2 * step);
			if (round % 2 == me) {
				kind->hold();
				turn = 2 * step + 1;
				until_asleep(tids[!me]);
				kind->release();
			} else {
				long begin;

				spin_until(2 * step + 1);
				begin = now_ns();
				kind->wait();
				printf("%s %ld %ld %ld %ld %p\n", kind->name, tids[me], tids[!me], begin,
				       now_ns(), kind->word);
				turn = 2 * step + 2;
			}
		}
	}
	return NULL;
}

static void endpoint(char *text, size_t size, int fd, int (*of)(int, struct sockaddr *, socklen_t *))
{
	struct sockaddr_in address;
	socklen_t length = sizeof(address);

	of(fd, (struct sockaddr *)&address, &length);
	snprintf(text, size, "%s:%d", inet_ntoa(address.sin_addr), ntohs(address.sin_port));
}

static void answer(int from, int to)
{
	char byte;

	while (read(from, &byte, 1) == 1) {
		until_asleep(getppid());
		if (write(to, &byte, 1) != 1)
			break;
	}
	_exit(0);
}

static void ask(const char *kind, int to, int from, const char *object)
{
	char byte = 'x';

	for (int round = 0; round < rounds; round++) {
		long begin = now_ns();

		if (write(to, &byte, 1) != 1 || read(from, &byte, 1) != 1)
			exit(1);
		printf("%s %d 0 %ld %ld %s\n", kind, gettid(), begin, now_ns(), object);
	}
}

static pid_t serve(int from, int to, int other)
{
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_NAME, "server");
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(other);
		answer(from, to);
	}
	return pid;
}

static void over_tcp(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0), peer;
	socklen_t length = sizeof(address);
	char local[64], remote[64], both[160];

	bind(listener, (struct sockaddr *)&address, length);
	listen(listener, 1);
	getsockname(listener, (struct sockaddr *)&address, &length);
	connect(fd, (struct sockaddr *)&address, length);
	peer = accept(listener, NULL, NULL);
	close(listener);
	serve(peer, peer, fd);
	close(peer);
	endpoint(local, sizeof(local), fd, getsockname);
	endpoint(remote, sizeof(remote), fd, getpeername);
	snprintf(both, sizeof(both), "%s %s", local, remote);
	ask("tcp", fd, fd, both);
}

static void over_unix(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), fd = socket(AF_UNIX, SOCK_STREAM, 0), peer;
	struct stat status;
	char object[160];

	snprintf(address.sun_path, sizeof(address.sun_path), "objects.%d.sock", getpid());
	bind(listener, (struct sockaddr *)&address, sizeof(address));
	listen(listener, 1);
	connect(fd, (struct sockaddr *)&address, sizeof(address));
	peer = accept(listener, NULL, NULL);
	close(listener);
	serve(peer, peer, fd);
	close(peer);
	fstat(fd, &status);
	snprintf(object, sizeof(object), "%lu %s", status.st_ino, address.sun_path);
	ask("unix", fd, fd, object);
	unlink(address.sun_path);
}

static void over_pipes(void)
{
	int there[2], back[2];
	struct stat status;
	char object[64];

	if (pipe(there) || pipe(back))
		exit(1);
	serve(there[0], back[1], there[1]);
	close(there[0]);
	close(back[1]);
	fstat(back[0], &status);
	snprintf(object, sizeof(object), "%lu", status.st_ino);
	ask("pipe", there[1], back[0], object);
}

static void to_disk(const char *path)
{
	int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
	static char block[1 << 16];
	struct stat status;

	fstat(fd, &status);
	for (int round = 0; round < rounds; round++) {
		long begin;

		memset(block, round, sizeof(block));
		if (write(fd, block, sizeof(block)) != sizeof(block))
			exit(1);
		begin = now_ns();
		fsync(fd);
		printf("fsync %d 0 %ld %ld %lu %s\n", gettid(), begin, now_ns(), status.st_ino, path);
	}
	close(fd);
}

int main(int argc, char **argv)
{
	pthread_mutexattr_t inherit;
	pthread_t threads[2];

	if (argc != 3)
		return 2;
	rounds = atoi(argv[2]);
	heap_lock = malloc(sizeof(*heap_lock));
	pthread_mutex_init(heap_lock, NULL);
	kinds[2].word = heap_lock;
	pthread_mutexattr_init(&inherit);
	pthread_mutexattr_setprotocol(&inherit, PTHREAD_PRIO_INHERIT);
	pthread_mutex_init(&pi_lock, &inherit);
	sem_init(&slots, 0, 0);
	setvbuf(stdout, NULL, _IOFBF, 1 << 20);
	for (long number = 0; number < 2; number++)
		pthread_create(&threads[number], NULL, side, (void *)number);
	for (int number = 0; number < 2; number++)
		pthread_join(threads[number], NULL);
	fflush(stdout);
	over_tcp();
	fflush(stdout);
	over_unix();
	fflush(stdout);
	over_pipes();
	to_disk(argv[1]);
	usleep(1500000);	/* for who looks up the servers, now and then */
	return 0;
}
