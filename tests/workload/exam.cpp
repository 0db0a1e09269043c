/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many small designs of waits, each in a process of its own: tests/kernel/test_exam.py knows what each thread
 * waits for. Threads are named by design and part ("rwlock/read"); a holder holds for HOLD, a user ROUNDS times.
 */
#include <barrier>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fcntl.h>
#include <functional>
#include <future>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <mutex>
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
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace std::chrono_literals;
using Work = std::function<void()>;
static constexpr auto HOLD = 40ms;
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

/* Three threads that all take a lock and sleep with it. */
static void contend(std::string name, Work take, Work give)
{
	std::vector<std::thread> users;

	prctl(PR_SET_NAME, "main");
	for (int i = 0; i < 3; i++)
		users.push_back(part(name, [=] {
			for (int round = 0; round < ROUNDS; round++) {
				take();
				nap();
				give();
				std::this_thread::sleep_for(1ms);	/* that others get it */
			}
		}));
	for (auto &user : users)
		user.join();
}

/* Two threads that wait for work which the process's first thread brings. */
static void serve(std::string name, Work fetch, Work bring)
{
	std::thread workers[2];

	prctl(PR_SET_NAME, "main");
	for (auto &worker : workers)
		worker = part(name, [=] { for (int i = 0; i < ROUNDS; i++) fetch(); });
	for (int i = 0; i < 2 * ROUNDS; i++) {
		nap();
		bring();
	}
	for (auto &worker : workers)
		worker.join();
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

static void with_mutex(std::string name, int kind, int robust, int protocol)
{
	static pthread_mutex_t lock;
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, kind);
	pthread_mutexattr_setrobust(&attr, robust);
	pthread_mutexattr_setprotocol(&attr, protocol);
	pthread_mutex_init(&lock, &attr);
	contend(name, [] { pthread_mutex_lock(&lock); }, [] { pthread_mutex_unlock(&lock); });
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

static std::mutex guard;
static std::condition_variable ready, space;
static std::deque<int> queue;
static bool taken;

static int fetch(std::condition_variable &when = ready)
{
	std::unique_lock lock(guard);

	when.wait(lock, [] { return !queue.empty(); });
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

static void locks()
{
	start_process("mutex", [] { with_mutex("mutex", PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE); });
	start_process("recursive", [] { with_mutex("recursive", PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE); });
	start_process("robust", [] { with_mutex("robust", PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ROBUST, PTHREAD_PRIO_NONE); });
	start_process("inherit", [] { with_mutex("inherit", PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_INHERIT); });
	start_process("mutex-timed", [] {
		static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
		contend("mutex-timed", [] { timespec end = soon(); pthread_mutex_timedlock(&lock, &end); },
			[] { pthread_mutex_unlock(&lock); });
	});
	start_process("mutex-clock", [] {
		static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
		contend("mutex-clock", [] {
			timespec end = soon(CLOCK_MONOTONIC);
			pthread_mutex_clocklock(&lock, CLOCK_MONOTONIC, &end);
		}, [] { pthread_mutex_unlock(&lock); });
	});
	start_process("timed-mutex", [] {
		static std::timed_mutex lock;
		contend("timed-mutex", [] { (void)lock.try_lock_for(60s); }, [] { lock.unlock(); });
	});
	start_process("main", [] {
		static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
		pthread_rwlock_wrlock(&lock);
		std::thread reader = part("rwlock/read", [] { pthread_rwlock_rdlock(&lock); nap(); pthread_rwlock_unlock(&lock); });
		std::thread other = part("rwlock/read", [] { pthread_rwlock_rdlock(&lock); nap(); pthread_rwlock_unlock(&lock); });
		std::thread writer = part("rwlock/write", [] { nap(); pthread_rwlock_wrlock(&lock); nap(); pthread_rwlock_unlock(&lock); });
		nap(), nap();
		pthread_rwlock_unlock(&lock);
		reader.join(), other.join(), writer.join();
	});
	start_process("shared-mutex", [] {
		static std::shared_mutex lock;
		contend("shared-mutex", [] { lock.lock(); }, [] { lock.unlock(); });
	});
	start_process("shared-timed", [] {
		static std::shared_timed_mutex lock;
		contend("shared-timed", [] { (void)lock.try_lock_for(60s); }, [] { lock.unlock(); });
	});
	start_process("sem-lock", [] {
		static sem_t lock;
		sem_init(&lock, 0, 1);
		contend("sem-lock", [] { sem_wait(&lock); }, [] { sem_post(&lock); });
	});
	start_process("sem-procs", [] {
		sem_t *lock = shared<sem_t>();
		sem_init(lock, 1, 1);
		for (int i = 0; i < 3; i++)
			start_process("sem-procs", [=] {
				for (int round = 0; round < ROUNDS; round++) {
					sem_wait(lock);
					nap();
					sem_post(lock);
					std::this_thread::sleep_for(1ms);
				}
			});
		prctl(PR_SET_NAME, "main");
		all_end();
	});
	start_process("cond-lock", [] {
		contend("cond-lock", [] {
			std::unique_lock lock(guard);
			ready.wait(lock, [] { return !taken; });
			taken = true;
		}, [] {
			std::lock_guard lock(guard);
			taken = false;
			ready.notify_one();
		});
	});
	start_process("counting", [] {
		static std::counting_semaphore<4> lock{1};
		contend("counting", [] { lock.acquire(); }, [] { lock.release(); });
	});
	start_process("sysv-lock", [] {
		static int id = semget(IPC_PRIVATE, 1, 0600);
		auto change = [](short by) { sembuf one = {0, by, 0}; semop(id, &one, 1); };
		change(1);
		contend("sysv-lock", [=] { change(-1); }, [=] { change(1); });
		semctl(id, 0, IPC_RMID);
	});
	for (bool is_range : {false, true})
		start_process("file-lock", [=] {
			static int fd;
			char path[] = "/tmp/exam-XXXXXX";
			close(mkstemp(path));
			for (int i = 0; i < 2; i++)
				start_process(is_range ? "fcntl-lock" : "flock", [=] {
					fd = open(path, O_RDWR);
					for (int round = 0; round < ROUNDS; round++) {
						is_range ? lockf(fd, F_LOCK, 0) : flock(fd, LOCK_EX);
						nap();
						is_range ? lockf(fd, F_ULOCK, 0) : flock(fd, LOCK_UN);
						std::this_thread::sleep_for(1ms);
					}
				});
			prctl(PR_SET_NAME, "main");
			all_end();
			unlink(path);
		});
	start_process("main", [] {
		static pthread_barrier_t barrier;
		pthread_barrier_init(&barrier, nullptr, 2);
		std::thread late = part("barrier/late", [] {
			for (int i = 0; i < ROUNDS; i++)
				nap(), pthread_barrier_wait(&barrier);
		});
		std::thread early = part("barrier/early", [] { for (int i = 0; i < ROUNDS; i++) pthread_barrier_wait(&barrier); });
		late.join(), early.join();
	});
}

static void queues()
{
	start_process("cond-queue", [] { serve("cond-queue", [] { fetch(); }, [] { bring(1); }); });
	start_process("sem-queue", [] {
		static sem_t items;
		sem_init(&items, 0, 0);
		serve("sem-queue", [] { sem_wait(&items); }, [] { sem_post(&items); });
	});
	start_process("count-queue", [] {
		static std::counting_semaphore<64> items{0};
		serve("count-queue", [] { items.acquire(); }, [] { items.release(); });
	});
	/* Workers bring work to each other, but all of it began with the process's first thread. */
	start_process("main", [] {
		std::thread workers[3];
		for (auto &worker : workers)
			worker = part("cond-pool", [] {
				for (int item; (item = fetch()) > 0;)
					std::this_thread::sleep_for(1ms), item > 1 ? bring(item - 1) : void();
			});
		for (int i = 0; i < ROUNDS; i++)
			nap(), bring(4);
		nap();
		for (auto &worker : workers)
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
			timespec time = {0, 40000000};
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

static void descriptors()
{
	static char path[] = "/tmp/exam-XXXXXX";
	static int fd, pair[2];

	descriptor("timerfd", [] {
		int timer = timerfd_create(CLOCK_MONOTONIC, 0);
		itimerspec time = {{}, {0, 80000000}};
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
	descriptor("tty", [] { fd = posix_openpt(O_RDWR); grantpt(fd), unlockpt(fd); return open(ptsname(fd), O_RDWR); },
		   [] { (void)!write(fd, "x\n", 2); });
	descriptor("perf", [] {
		perf_event_attr attr = {};
		attr.size = sizeof(attr);
		attr.type = PERF_TYPE_SOFTWARE;
		attr.config = PERF_COUNT_SW_CPU_CLOCK;
		fd = syscall(SYS_perf_event_open, &attr, child_for(2 * HOLD), -1, -1, 0);
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
}

int main()
{
	setvbuf(stdout, nullptr, _IONBF, 0);
	locks();
	queues();
	ends();
	descriptors();
	until_signals();
	stopped("stopped", false);
	stopped("traced", true);
	start_process("futex-waitv", [] {
		static unsigned word;
		futex_waitv one = {0, reinterpret_cast<unsigned long>(&word), FUTEX_32 | FUTEX_PRIVATE_FLAG, 0};
		std::thread other = part("other", [] { nap(), nap(), syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1); });
		syscall(SYS_futex_waitv, &one, 1, 0, nullptr, 0);
		other.join();
	});
	all_end();
}
