/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many small designs of waits, each in a process of its own: tests/kernel/test_exam.py knows what each thread
 * waits for. Threads are named by design and part ("rwlock/read"); a holder holds for HOLD, a user ROUNDS times.
 */
#include <arpa/inet.h>
#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <functional>
#include <future>
#include <latch>
#include <libgen.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <mqueue.h>
#include <mutex>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <semaphore>
#include <shared_mutex>
#include <signal.h>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <thread>
#include <threads.h>
#include <unistd.h>
#include <vector>

using namespace std::chrono_literals;
using Work = std::function<void()>;
#ifndef SLOWER
#define SLOWER 1	/* at most 12: as much longer are times on a slower machine */
#endif
static constexpr auto HOLD = SLOWER * 40ms, PAUSE = SLOWER * 1ms;
static constexpr int ROUNDS = 4;

static void nap() { std::this_thread::sleep_for(HOLD); }

static std::thread part(std::string name, Work work)
{
	return std::thread([=] {
		prctl(PR_SET_NAME, name.c_str());
		work();
	});
}

static void start_process(std::string name, Work work)
{
	if (!fork()) {
		prctl(PR_SET_NAME, name.c_str());
		work();
		_exit(0);
	}
}

static void all_end() { while (wait(nullptr) > 0); }

/* Take a lock and sleep with it, again and again. */
static void use(Work take, Work give)
{
	for (int round = 0; round < ROUNDS; round++) {
		take();
		nap();
		give();
		std::this_thread::sleep_for(PAUSE);	/* that others get it */
	}
}

/* Three threads that all take a lock. */
static void contend(std::string name, Work take, Work give)
{
	start_process("main", [=] {
		std::vector<std::thread> users;

		for (int i = 0; i < 3; i++)
			users.push_back(part(name, [=] { use(take, give); }));
		for (auto &user : users)
			user.join();
	});
}

/* The same of three processes. */
static void contend_processes(std::string name, Work take, Work give)
{
	for (int i = 0; i < 3; i++)
		start_process(name, [=] { use(take, give); });
}

/* Two threads that wait for work which the process's first thread brings. */
static void serve(std::string name, Work fetch, Work bring)
{
	start_process("main", [=] {
		std::thread workers[2];

		for (auto &worker : workers)
			worker = part(name, [=] { for (int i = 0; i < ROUNDS; i++) fetch(); });
		for (int i = 0; i < 2 * ROUNDS; i++) {
			nap();
			bring();
		}
		for (auto &worker : workers)
			worker.join();
	});
}

/* The same of processes. */
static void serve_processes(std::string name, Work fetch, Work bring)
{
	for (int i = 0; i < 2; i++)
		start_process(name, [=] { for (int i = 0; i < ROUNDS; i++) fetch(); });
	start_process("main", [=] { for (int i = 0; i < 2 * ROUNDS; i++) nap(), bring(); });
}

/* Two threads of which the late one naps before it comes to a meeting. */
static void meet(std::string name, Work arrive)
{
	start_process("main", [=] {
		std::thread late = part(name + "/late", [=] { for (int i = 0; i < ROUNDS; i++) nap(), arrive(); });
		std::thread early = part(name + "/early", [=] { for (int i = 0; i < ROUNDS; i++) arrive(); });

		late.join(), early.join();
	});
}

/* Something that happens once, after two naps. */
static void await(std::string name, Work wait, Work happen)
{
	start_process("main", [=] {
		std::thread waiting = part(name, wait);
		std::thread other = part("other", [=] { nap(), nap(), nap(), nap(), happen(), nap(), nap(), nap(); });

		other.join(), waiting.join();
	});
}

static timespec soon(int clock = CLOCK_REALTIME)
{
	timespec time;

	clock_gettime(clock, &time);
	time.tv_sec += 60;
	return time;
}

template <class T> static T *shared()
{
	return static_cast<T *>(mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

template <class T> static T *initial(T value)
{
	T *copy = shared<T>();

	*copy = value;
	return copy;
}

static void with_mutex(std::string name, int kind, int robust, int protocol, bool is_shared = false)
{
	static pthread_mutex_t own;
	pthread_mutex_t *lock = is_shared ? shared<pthread_mutex_t>() : &own;
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, kind);
	pthread_mutexattr_setrobust(&attr, robust);
	pthread_mutexattr_setprotocol(&attr, protocol);
	pthread_mutexattr_setpshared(&attr, is_shared);
	pthread_mutex_init(lock, &attr);
	(is_shared ? contend_processes : contend)(name, [=] { pthread_mutex_lock(lock); }, [=] { pthread_mutex_unlock(lock); });
}

/* A lock of the C++ library, taken with a timeout or without. */
template <class T> static void with_lock(std::string name)
{
	static T lock;

	contend(name, [] {
		if constexpr (requires { lock.try_lock_for(60s); })
			(void)lock.try_lock_for(60s);
		else
			lock.lock();
	}, [] { lock.unlock(); });
}

/* A descriptor that becomes ready after HOLD, waited for in three ways. */
static void descriptor(std::string name, std::function<int()> open, Work make_ready, bool readable = true)
{
	for (const char *way : {"read", "poll", "epoll"}) {
		if (!readable && *way == 'r')
			continue;
		start_process(name + "/" + way, [=] {
			int fd = open();
			char bytes[4096];
			std::thread other = part("other", [=] { nap(), nap(), make_ready(); });
			pollfd one = {fd, POLLIN, 0};
			epoll_event event = {.events = EPOLLIN, .data = {}};

			if (*way == 'r')
				(void)!read(fd, bytes, sizeof(bytes));
			else if (*way == 'p')
				poll(&one, 1, -1);
			else {
				int epoll = epoll_create1(0);
				epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
				epoll_wait(epoll, &event, 1, -1);
			}
			other.join();
		});
	}
}

/* A wait that a signal breaks off. */
static void until_signal(std::string name, Work work)
{
	start_process(name, [=] {
		struct sigaction action = {};
		std::thread other = part("other", [me = pthread_self()] { nap(), nap(), pthread_kill(me, SIGUSR1); });

		action.sa_handler = [](int) {};
		sigaction(SIGUSR1, &action, nullptr);
		work();
		other.join();
	});
}

static int child_for(std::chrono::milliseconds time)
{
	int pid = fork();

	if (!pid) {
		prctl(PR_SET_NAME, "other");
		std::this_thread::sleep_for(time);
		_exit(0);
	}
	return pid;
}

static void stopped(std::string name, bool by_tracer)
{
	start_process(name, [=] {
		int child = fork();

		if (!child) {
			nap();
			_exit(0);
		}
		prctl(PR_SET_NAME, "main");
		if (by_tracer) {
			ptrace(PTRACE_SEIZE, child, 0, 0);
			ptrace(PTRACE_INTERRUPT, child, 0, 0);
		} else
			kill(child, SIGSTOP);
		nap(), nap();
		if (by_tracer) {
			waitpid(child, nullptr, 0);
			ptrace(PTRACE_DETACH, child, 0, 0);
		} else
			kill(child, SIGCONT);
		wait(nullptr);
	});
}

static std::vector<Work> remove_at_end;
static std::mutex guard;
static std::condition_variable ready;
static std::deque<int> queue;
static std::atomic<int> comers;
static thread_local int seat = ++comers;
static bool taken;

static int fetch()
{
	std::unique_lock lock(guard);

	ready.wait(lock, [] { return !queue.empty(); });
	int item = queue.front();
	queue.pop_front();
	return item;
}

static void bring(int item)
{
	std::lock_guard lock(guard);

	queue.push_back(item);
	ready.notify_one();
}

static void mutexes()
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static mtx_t c11, c11_timed;

	with_mutex("mutex", PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE);
	with_mutex("recursive", PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE);
	with_mutex("errorcheck", PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE);
	with_mutex("adaptive", PTHREAD_MUTEX_ADAPTIVE_NP, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE);
	with_mutex("robust", PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ROBUST, PTHREAD_PRIO_NONE);
	with_mutex("inherit", PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_INHERIT);
	with_mutex("mutex-procs", PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE, true);
	with_mutex("robust-procs", PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ROBUST, PTHREAD_PRIO_NONE, true);
	contend("mutex-timed", [] { timespec end = soon(); pthread_mutex_timedlock(&lock, &end); },
		[] { pthread_mutex_unlock(&lock); });
	contend("mutex-clock", [] {
		timespec end = soon(CLOCK_MONOTONIC);
		pthread_mutex_clocklock(&lock, CLOCK_MONOTONIC, &end);
	}, [] { pthread_mutex_unlock(&lock); });
	mtx_init(&c11, mtx_plain), mtx_init(&c11_timed, mtx_timed);
	contend("c11-mutex", [] { mtx_lock(&c11); }, [] { mtx_unlock(&c11); });
	contend("c11-timed", [] { timespec end = soon(); mtx_timedlock(&c11_timed, &end); }, [] { mtx_unlock(&c11_timed); });
	with_lock<std::mutex>("std-mutex");
	with_lock<std::timed_mutex>("timed-mutex");
	with_lock<std::recursive_timed_mutex>("rec-timed-mutex");
	with_lock<std::shared_mutex>("shared-mutex");
	with_lock<std::shared_timed_mutex>("shared-timed");
}

static void rwlocks()
{
	static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

	start_process("main", [] {
		pthread_rwlock_wrlock(&lock);
		auto read = [] { pthread_rwlock_rdlock(&lock), nap(), pthread_rwlock_unlock(&lock); };
		std::thread reader = part("rwlock/read", read);
		std::thread other = part("rwlock/read", read);
		std::thread writer = part("rwlock/write", [] { nap(); pthread_rwlock_wrlock(&lock); nap(); pthread_rwlock_unlock(&lock); });
		nap(), nap();
		pthread_rwlock_unlock(&lock);
		reader.join(), other.join(), writer.join();
	});
	contend("rwlock-timed", [] { timespec end = soon(); pthread_rwlock_timedwrlock(&lock, &end); },
		[] { pthread_rwlock_unlock(&lock); });
	pthread_rwlock_t *common = shared<pthread_rwlock_t>();
	pthread_rwlockattr_t attr;
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_rwlock_init(common, &attr);
	contend_processes("rwlock-procs", [=] { pthread_rwlock_wrlock(common); }, [=] { pthread_rwlock_unlock(common); });
}

static void semaphores()
{
	static sem_t lock, items, timed_items;
	static std::counting_semaphore<4> counting{1};
	static std::counting_semaphore<64> counted{0};
	sem_t *common = shared<sem_t>(), *common_items = shared<sem_t>();
	sem_t *named = sem_open("/perf-offcpu-exam", O_CREAT, 0600, 1);

	sem_unlink("/perf-offcpu-exam");
	sem_init(&lock, 0, 1), sem_init(&items, 0, 0), sem_init(&timed_items, 0, 0);
	sem_init(common, 1, 1), sem_init(common_items, 1, 0);
	contend("sem-lock", [] { sem_wait(&lock); }, [] { sem_post(&lock); });
	contend("sem-timed", [] { timespec end = soon(); sem_timedwait(&lock, &end); }, [] { sem_post(&lock); });
	contend("counting", [] { counting.acquire(); }, [] { counting.release(); });
	contend_processes("sem-procs", [=] { sem_wait(common); }, [=] { sem_post(common); });
	contend_processes("sem-named", [=] { sem_wait(named); }, [=] { sem_post(named); });
	serve("sem-queue", [] { sem_wait(&items); }, [] { sem_post(&items); });
	serve("sem-queue-timed", [] { timespec end = soon(); sem_timedwait(&timed_items, &end); }, [] { sem_post(&timed_items); });
	serve("count-queue", [] { counted.acquire(); }, [] { counted.release(); });
	serve_processes("sem-queue-procs", [=] { sem_wait(common_items); }, [=] { sem_post(common_items); });
	for (bool is_queue : {false, true}) {
		int id = semget(IPC_PRIVATE, 1, 0600);
		auto change = [=](short by) { sembuf one = {0, by, 0}; semop(id, &one, 1); };
		if (is_queue)
			serve("sysv-queue", [=] { change(-1); }, [=] { change(1); });
		else
			change(1), contend("sysv-lock", [=] { change(-1); }, [=] { change(1); });
		remove_at_end.push_back([=] { semctl(id, 0, IPC_RMID); });
	}
}

struct Common {
	pthread_mutex_t guard;
	pthread_cond_t ready;
	int items;
};

static void common_fetch(Common *common)
{
	pthread_mutex_lock(&common->guard);
	while (!common->items)
		pthread_cond_wait(&common->ready, &common->guard);
	common->items--;
	pthread_mutex_unlock(&common->guard);
}

static void common_bring(Common *common)
{
	pthread_mutex_lock(&common->guard);
	common->items++;
	pthread_cond_signal(&common->ready);
	pthread_mutex_unlock(&common->guard);
}

static void conditions()
{
	static std::condition_variable_any any;
	static std::shared_mutex any_guard;
	static std::condition_variable seats[9];
	static std::deque<int> parked;
	static int turn;
	static mtx_t c11_guard;
	static cnd_t c11;
	static int c11_items;
	Common *common = initial<Common>({PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 1}), *queue = shared<Common>();
	pthread_condattr_t cond_attr;
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr), pthread_condattr_init(&cond_attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_condattr_setpshared(&cond_attr, PTHREAD_PROCESS_SHARED);
	for (Common *one : {common, queue})
		pthread_mutex_init(&one->guard, &attr), pthread_cond_init(&one->ready, &cond_attr);
	auto give = [] { std::lock_guard lock(guard); taken = false; ready.notify_one(); };
	contend("cond-lock", [] {
		std::unique_lock lock(guard);
		ready.wait(lock, [] { return !taken; });
		taken = true;
	}, give);
	contend("cond-timed", [] {
		std::unique_lock lock(guard);
		ready.wait_for(lock, 60s, [] { return !taken; });
		taken = true;
	}, give);
	contend("cond-any", [] {
		std::unique_lock lock(any_guard);
		any.wait(lock, [] { return !taken; });
		taken = true;
	}, [] { std::lock_guard lock(any_guard); taken = false; any.notify_one(); });
	contend("cond-parked", [] {	/* as runtimes make locks: a condition for each thread */
		std::unique_lock lock(guard);
		if (turn)
			parked.push_back(seat);
		seats[seat].wait(lock, [] { return !turn || turn == seat; });
		turn = seat;
	}, [] {
		std::lock_guard lock(guard);
		turn = parked.empty() ? 0 : parked.front();
		if (turn)
			parked.pop_front(), seats[turn].notify_one();
	});
	contend_processes("cond-procs", [=] { common_fetch(common); }, [=] { common_bring(common); });
	serve("cond-queue", [] { fetch(); }, [] { bring(1); });
	serve("cond-queue-time", [] {
		std::unique_lock lock(guard);
		ready.wait_for(lock, 60s, [] { return !::queue.empty(); });
		::queue.pop_front();
	}, [] { bring(1); });
	serve_processes("cond-queue-proc", [=] { common_fetch(queue); }, [=] { common_bring(queue); });
	mtx_init(&c11_guard, mtx_plain), cnd_init(&c11);
	serve("c11-queue", [] {
		mtx_lock(&c11_guard);
		while (!c11_items)
			cnd_wait(&c11, &c11_guard);
		c11_items--;
		mtx_unlock(&c11_guard);
	}, [] {
		mtx_lock(&c11_guard);
		c11_items++;
		cnd_signal(&c11);
		mtx_unlock(&c11_guard);
	});
}

static void meetings()
{
	static pthread_barrier_t barrier;
	static std::barrier std_barrier(2);
	static std::latch latch(1);
	static std::once_flag once;
	static std::promise<int> promise;
	static std::atomic<int> number;
	static unsigned word;

	pthread_barrier_init(&barrier, nullptr, 2);
	meet("barrier", [] { pthread_barrier_wait(&barrier); });
	meet("std-barrier", [] { std_barrier.arrive_and_wait(); });
	await("latch", [] { latch.wait(); }, [] { latch.count_down(); });
	await("future", [] { promise.get_future().wait(); }, [] { promise.set_value(1); });
	await("atomic", [] { number.wait(0); }, [] { number = 1, number.notify_all(); });
	await("futex", [] { syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, nullptr); },
	      [] { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1); });
	await("futex-waitv", [] {
		futex_waitv one = {0, reinterpret_cast<unsigned long>(&word), FUTEX_32 | FUTEX_PRIVATE_FLAG, 0};
		syscall(SYS_futex_waitv, &one, 1, 0, nullptr, 0);
	}, [] { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1); });
	start_process("main", [] {
		std::thread first = part("other", [] { std::call_once(once, [] { nap(), nap(); }); nap(), nap(), nap(); });
		std::this_thread::sleep_for(PAUSE);
		std::thread second = part("once", [] { std::call_once(once, [] {}); });
		first.join(), second.join();
	});
}

static void file_locks()
{
	static int fd;
	auto opened = [](std::string name, Work take, Work give) {
		std::string path = "/tmp/exam-" + name;
		close(open(path.c_str(), O_CREAT, 0600));
		remove_at_end.push_back([=] { unlink(path.c_str()); });
		contend_processes(name, [=] { fd = fd ? fd : open(path.c_str(), O_RDWR); take(); }, give);
	};
	opened("flock", [] { flock(fd, LOCK_EX); }, [] { flock(fd, LOCK_UN); });
	opened("fcntl-lock", [] { (void)!lockf(fd, F_LOCK, 0); }, [] { (void)!lockf(fd, F_ULOCK, 0); });
	auto change = [](int command, short type) {
		struct flock range = {type, SEEK_SET, 100, 1, 0};
		fcntl(fd, command, &range);
	};
	opened("ofd-lock", [=] { change(F_OFD_SETLKW, F_WRLCK); }, [=] { change(F_OFD_SETLK, F_UNLCK); });
}

static void queues()
{
	/* Workers bring work to each other, but all of it began with the process's first thread. */
	start_process("main", [] {
		std::thread workers[3];
		for (auto &worker : workers)
			worker = part("cond-pool", [] {
				for (int item; (item = fetch()) > 0;)
					std::this_thread::sleep_for(PAUSE), item > 1 ? bring(item - 1) : void();
			});
		for (int i = 0; i < ROUNDS; i++)
			nap(), bring(4);
		nap();
		for (int i = 0; i < 3; i++)
			bring(0);
		for (auto &worker : workers)
			worker.join();
	});
	start_process("main", [] {
		part("unused/cond", [] { fetch(); }).detach();
		part("unused/sem", [] { static sem_t none; sem_wait(&none); }).detach();
		part("unused/poll", [] { poll(nullptr, 0, -1); }).detach();
		nap(), nap();
		_exit(0);
	});
}

static void ends()
{
	start_process("join", [] {
		std::thread first = part("other", [] { nap(), nap(); });
		std::thread second = part("join/two", [&] { first.join(); });
		second.join();
	});
	start_process("join-timed", [] {
		pthread_t other;
		timespec end = soon();
		pthread_create(&other, nullptr, [](void *) -> void * { prctl(PR_SET_NAME, "other"), nap(); return nullptr; }, nullptr);
		pthread_timedjoin_np(other, nullptr, &end);
	});
	start_process("waitpid", [] { waitpid(child_for(HOLD), nullptr, 0); });
	start_process("vfork", [] {
		if (!vfork()) {
			timespec time = {0, SLOWER * 40000000};
			nanosleep(&time, nullptr);
			_exit(0);
		}
	});
	start_process("waitid", [] {
		siginfo_t info;
		waitid(P_PIDFD, syscall(SYS_pidfd_open, child_for(HOLD), 0), &info, WEXITED);
	});
	descriptor("pidfd", [] { return syscall(SYS_pidfd_open, child_for(2 * HOLD), 0); }, [] {}, false);
}

static sockaddr_in address_of(int socket)
{
	sockaddr_in address;
	socklen_t size = sizeof(address);

	getsockname(socket, reinterpret_cast<sockaddr *>(&address), &size);
	return address;
}

static int bound(int type)
{
	int fd = socket(AF_INET, type, 0);
	sockaddr_in address = {};

	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address));
	return fd;
}

static int listener()
{
	int fd = bound(SOCK_STREAM);

	listen(fd, 5);
	return fd;
}

static int connect_to(int listener)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	sockaddr_in address = address_of(listener);

	connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address));
	return fd;
}

static void tcp_pair(int pair[2])
{
	int fd = listener();

	pair[0] = connect_to(fd);
	pair[1] = accept(fd, nullptr, nullptr);
}

static void send_to(int fd)
{
	sockaddr_in address = address_of(fd);

	sendto(fd, "x", 1, 0, reinterpret_cast<sockaddr *>(&address), sizeof(address));
}

/* Submit a request to io_uring(7) and wait for its end. */
static void submit(io_uring_sqe request)
{
	static io_uring_params params = {};
	static const int fd = syscall(SYS_io_uring_setup, 4, &params), prot = PROT_READ | PROT_WRITE;
	static char *ring = static_cast<char *>(mmap(nullptr, 4096, prot, MAP_SHARED, fd, IORING_OFF_SQ_RING));
	static void *entries = mmap(nullptr, 4 * sizeof(request), prot, MAP_SHARED, fd, IORING_OFF_SQES);

	memcpy(entries, &request, sizeof(request));
	for (int i = 0; i < 4; i++)
		reinterpret_cast<unsigned *>(ring + params.sq_off.array)[i] = 0;
	++*reinterpret_cast<unsigned *>(ring + params.sq_off.tail);
	syscall(SYS_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
	*reinterpret_cast<unsigned *>(ring + params.cq_off.head) = *reinterpret_cast<unsigned *>(ring + params.cq_off.tail);
}

static io_uring_sqe request(unsigned char code, int fd, void *to, unsigned size)
{
	io_uring_sqe made = {};

	made.opcode = code, made.fd = fd, made.len = size;
	made.addr = reinterpret_cast<unsigned long>(to);
	return made;
}

static void descriptors()
{
	static char path[] = "/tmp/exam-XXXXXX";
	static int fd, pair[2];

	descriptor("timerfd", [] {
		int timer = timerfd_create(CLOCK_MONOTONIC, 0);
		itimerspec time = {{}, {0, SLOWER * 80000000}};
		timerfd_settime(timer, 0, &time, nullptr);
		return timer;
	}, [] {});
	descriptor("eventfd", [] { return fd = eventfd(0, 0); }, [] { eventfd_write(fd, 1); });
	descriptor("signalfd", [] {
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, SIGUSR1);
		pthread_sigmask(SIG_BLOCK, &set, nullptr);
		return signalfd(-1, &set, 0);
	}, [] { kill(getpid(), SIGUSR1); });
	descriptor("inotify", [] {
		int notify = inotify_init1(0);
		inotify_add_watch(notify, mkdtemp(path), IN_DELETE_SELF);
		return notify;
	}, [] { rmdir(path); });
	descriptor("pipe", [] { (void)!pipe(pair); return pair[0]; }, [] { (void)!write(pair[1], "x", 1); });
	descriptor("unix", [] { socketpair(AF_UNIX, SOCK_STREAM, 0, pair); return pair[0]; },
		   [] { (void)!write(pair[1], "x", 1); });
	descriptor("tcp", [] { tcp_pair(pair); return pair[0]; }, [] { (void)!write(pair[1], "x", 1); });
	descriptor("udp", [] { return fd = bound(SOCK_DGRAM); }, [] { send_to(fd); });
	descriptor("listen", [] { return fd = listener(); }, [] { (void)!connect_to(fd); }, false);
	descriptor("tty", [] { fd = posix_openpt(O_RDWR); grantpt(fd), unlockpt(fd); return open(ptsname(fd), O_RDWR); },
		   [] { (void)!write(fd, "x\n", 2); });
	descriptor("perf", [] {
		perf_event_attr attr = {};
		attr.size = sizeof(attr);
		attr.type = PERF_TYPE_SOFTWARE;
		attr.config = PERF_COUNT_SW_CPU_CLOCK;
		attr.exclude_kernel = attr.exclude_hv = 1; /* as an ordinary user may */
		fd = syscall(SYS_perf_event_open, &attr, child_for(6 * HOLD), -1, -1, 0);
		mmap(nullptr, 2 * getpagesize(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		return fd;
	}, [] {}, false);
}

static void until_signals()
{
	static char bytes[4096];

	until_signal("fanotify", [] { (void)!read(fanotify_init(0, O_RDONLY), bytes, sizeof(bytes)); });
	until_signal("userfaultfd", [] {
		int fd = syscall(SYS_userfaultfd, 0);
		uffdio_api api = {UFFD_API, 0, 0};
		ioctl(fd, UFFDIO_API, &api);
		(void)!read(fd, bytes, sizeof(bytes));
	});
	until_signal("io_uring", [] {
		io_uring_params params = {};
		int fd = syscall(SYS_io_uring_setup, 4, &params);
		syscall(SYS_io_uring_enter, fd, 0, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
	});
	until_signal("pause", [] { pause(); });
	until_signal("sigwait", [] {
		sigset_t set;
		int number;
		sigemptyset(&set);
		sigaddset(&set, SIGUSR1);
		pthread_sigmask(SIG_BLOCK, &set, nullptr);
		sigwait(&set, &number);
	});
	until_signal("accept", [] { accept(listener(), nullptr, nullptr); });
	start_process("select/sleep", [] {
		timeval time = {0, SLOWER * 80000};
		select(0, nullptr, nullptr, nullptr, &time);
	});
	until_signal("mq", [] {
		mq_attr attr = {0, 1, 8, 0, {}};
		mqd_t queue = mq_open("/perf-offcpu-exam", O_CREAT | O_RDWR, 0600, &attr);
		mq_unlink("/perf-offcpu-exam");
		mq_receive(queue, bytes, sizeof(bytes), nullptr);
	});
	until_signal("sysv-messages", [] {
		int id = msgget(IPC_PRIVATE, 0600);
		(void)!msgrcv(id, bytes, 8, 0, 0);
		msgctl(id, IPC_RMID, nullptr);
	});
	start_process("main", [] {
		static int pair[2];
		tcp_pair(pair);
		auto reader = part("io_uring/socket", [] {
			for (int i = 0; i < 15; i++) /* its names are read while it lives */
				submit(request(IORING_OP_RECV, pair[0], bytes, 1));
		});
		for (int i = 0; i < 15; i++) {
			nap();
			(void)!write(pair[1], "x", 1);
		}
		reader.join();
	});
	start_process("io_uring/time", [] {
		__kernel_timespec time = {0, SLOWER * 80000000};
		for (int i = 0; i < 8; i++)
			submit(request(IORING_OP_TIMEOUT, -1, &time, 1));
	});
	start_process("main", [] {
		static char path[] = "/var/tmp/exam-XXXXXX";
		int fd = mkostemp(path, O_DIRECT);
		const int size = 1 << 25; // takes more than the threshold on a fast disk, too
		char *page = static_cast<char *>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		memset(page, 1, size);
		part("io_uring/file", [=] {
			auto end = std::chrono::steady_clock::now() + 15 * HOLD;
			while (std::chrono::steady_clock::now() < end)
				submit(request(IORING_OP_WRITE, fd, page, size));
		}).join();
		unlink(path);
	});
	until_signal("fifo", [] {
		char path[] = "/tmp/exam-XXXXXX";
		mkfifo(strcat(mkdtemp(path), "/f") , 0600);
		(void)!open(path, O_RDONLY);
		unlink(path);
		rmdir(dirname(path));
	});
}

/* Page faults: of a file that is not in memory, and one that another thread has to resolve. */
static void faults()
{
	static const size_t size = getpagesize(), pages = 2048;
	static int fd;
	static char *memory;

	start_process("main", [] {
		char path[] = "/var/tmp/exam-XXXXXX";
		fd = mkstemp(path);
		unlink(path);
		std::vector<char> text(size * pages, 'x');
		(void)!write(fd, text.data(), text.size());
		fsync(fd);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		part("mapped", [] {
			volatile char *file = static_cast<char *>(mmap(nullptr, size * pages, PROT_READ, MAP_SHARED, fd, 0));
			madvise(const_cast<char *>(file), size * pages, MADV_RANDOM);
			for (size_t page = 0; page < pages; page++)
				(void)file[page * size];
		}).join();
	});
	start_process("main", [] {
		uffdio_api api = {UFFD_API, 0, 0};
		fd = syscall(SYS_userfaultfd, 0);
		ioctl(fd, UFFDIO_API, &api);
		memory = static_cast<char *>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		uffdio_register range = {{reinterpret_cast<unsigned long>(memory), size}, UFFDIO_REGISTER_MODE_MISSING, 0};
		ioctl(fd, UFFDIO_REGISTER, &range);
		std::thread other = part("other", [] {
			uffdio_zeropage page = {{reinterpret_cast<unsigned long>(memory), size}, 0, 0};
			nap(), nap();
			ioctl(fd, UFFDIO_ZEROPAGE, &page);
			nap(), nap(), nap();
		});
		std::thread waiting = part("uffd-fault", [] { *static_cast<volatile char *>(memory) = 1; });
		other.join(), waiting.join();
	});
}

/* Threads that wait for a CPU alone: two on one, and one that only an idle CPU would run. */
static void for_cpu()
{
	static auto burn = [](std::chrono::milliseconds time) {
		timespec used;
		do
			clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
		while (used.tv_sec * 1000 + used.tv_nsec / 1000000 < time.count());
	};
	static auto pinned = [](std::string name, Work work) {
		return part(name, [=] {
			cpu_set_t set;
			CPU_ZERO(&set);
			CPU_SET(0, &set);
			sched_setaffinity(0, sizeof(set), &set);
			work();
		});
	};
	start_process("main", [] {
		std::thread users[2];
		for (auto &user : users)
			user = pinned("affinity", [] { burn(100ms); });
		for (auto &user : users)
			user.join();
	});
	start_process("main", [] {
		std::thread hog = pinned("other", [] { burn(200ms); });
		std::thread idle = pinned("priority", [] {
			sched_param none = {};
			sched_setscheduler(0, SCHED_IDLE, &none);
			burn(5ms);
		});
		hog.join(), idle.join();
	});
}

static void states()
{
	stopped("stopped", false);
	stopped("traced", true);
}

int main(int argc, char **argv)
{
	const std::pair<std::string_view, void (*)()> groups[] = {
		{"mutexes", mutexes},
		{"rwlocks", rwlocks},
		{"semaphores", semaphores},
		{"conditions", conditions},
		{"meetings", meetings},
		{"file_locks", file_locks},
		{"queues", queues},
		{"ends", ends},
		{"descriptors", descriptors},
		{"until_signals", until_signals},
		{"faults", faults},
		{"for_cpu", for_cpu},
		{"states", states},
	};

	setvbuf(stdout, nullptr, _IONBF, 0);
	bool chosen = false;
	for (auto &[name, begin] : groups)
		if (argc == 1 || name == argv[1])
			chosen = true, begin();
	if (!chosen)
		with_mutex(argv[1], PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE);
	all_end();
	for (auto &remove : remove_at_end)
		remove();
}
