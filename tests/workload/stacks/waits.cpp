// SPDX-License-Identifier: Apache-2.0
//
// A C++ program whose waits have stacks of every kind: virtual calls, templates and lambdas, inlined functions,
// recursion, frames on realigned stacks and with alloca, destructors while an exception is thrown, callbacks
// through libc, signal handlers; in the main thread and in others.
//
// usage: waits ROUNDS
#include <alloca.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

static void nap(long us) {
  timespec t = {0, us * 1000};
  while (nanosleep(&t, &t)) {}
}

struct Waiter {
  virtual ~Waiter() = default;
  virtual void wait(int depth) const = 0;
};
struct Napper : Waiter {
  void wait(int depth) const override;
};
static inline __attribute__((always_inline)) void inlined(int depth) { nap(1500 + depth); }
void Napper::wait(int depth) const {
  if (depth > 0) {
    wait(depth - 1);
    asm volatile("" ::: "memory");
  } else {
    inlined(depth);
  }
}

struct NapsAtTheEnd {
  ~NapsAtTheEnd() { nap(1500); }
};
__attribute__((noinline)) int thrower(int depth) {
  NapsAtTheEnd guard;
  if (depth == 0) throw std::runtime_error("thrown");
  return thrower(depth - 1) + 1;
}

__attribute__((noinline)) void aligned(int n) {
  alignas(64) char buffer[128];
  snprintf(buffer, sizeof buffer, "secret %d on the stack", n);
  char *more = static_cast<char *>(alloca(n * 16 + 16));
  memset(more, buffer[n], n * 16 + 16);
  nap(1500);
  asm volatile("" ::"r"(buffer), "r"(more) : "memory");
}

static int compare(const void *a, const void *b) {
  nap(1500);
  return *static_cast<const int *>(a) - *static_cast<const int *>(b);
}

static void on_signal(int) { nap(1500); }

static void rounds(int number) {
  for (int i = 0; i < number; i++) {
    std::unique_ptr<Waiter> waiter = std::make_unique<Napper>();
    waiter->wait(12);
    try {
      thrower(3);
    } catch (const std::exception &problem) {
      nap(1500);
    }
    aligned(i % 20);
    std::function<void()> lambda = [i] { aligned(i % 7); };
    lambda();
    std::vector<int> numbers = {2, 1};
    qsort(numbers.data(), numbers.size(), sizeof(int), compare);
    raise(SIGUSR1);
  }
}

int main(int argc, char **argv) {
  const int number = argc > 1 ? atoi(argv[1]) : 5;
  signal(SIGUSR1, on_signal);
  std::thread other(rounds, number);
  rounds(number);
  other.join();
}
