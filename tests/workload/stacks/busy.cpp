// SPDX-License-Identifier: Apache-2.0
//
// A C++ program that is never idle, with stacks of many depths: recursion through virtual calls, templates and
// lambdas that are inlined, comparisons called back from libstdc++ and libc, containers of strings, exceptions
// that unwind several frames; in the main thread and in another.
//
// usage: busy SECONDS
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <time.h>
#include <vector>

struct Node {
  virtual ~Node() = default;
  virtual long value(int depth) const = 0;
};
struct Leaf : Node {
  long number;
  explicit Leaf(long number) : number(number) {}
  long value(int depth) const override {
    if (depth > 30) throw std::out_of_range("too deep: " + std::to_string(depth));
    std::vector<int> numbers(40);
    for (auto &one : numbers) one = rand() % 1000 ^ int(number);
    std::sort(numbers.begin(), numbers.end(), [depth](int a, int b) { return (a ^ depth) < (b ^ depth); });
    return numbers[depth];
  }
};
struct Branch : Node {
  std::vector<std::unique_ptr<Node>> children;
  long value(int depth) const override {
    long sum = 0;
    for (const auto &child : children) sum += child->value(depth + 1);
    return sum;
  }
};

static std::unique_ptr<Node> tree(int depth, int width) {
  if (depth == 0) return std::make_unique<Leaf>(rand());
  auto branch = std::make_unique<Branch>();
  for (int i = 0; i < width; i++) branch->children.push_back(tree(depth - 1 - i % 2 * (depth > 1), width));
  return branch;
}

static int compare(const void *a, const void *b) {
  return *static_cast<const int *>(a) - *static_cast<const int *>(b);
}

__attribute__((noinline)) static long guarded(const Node &node, int depth) {
  std::string note = "guard of depth " + std::to_string(depth);
  if (depth > 0) return guarded(node, depth - 1) + long(note.size());
  try {
    return node.value(0);
  } catch (const std::out_of_range &) {
    return node.value(-20);
  }
}

static long strings(int rounds) {
  std::map<std::string, std::function<long(int)>> calls;
  for (int i = 0; i < rounds; i++) {
    calls["call " + std::to_string(i * 7919 % rounds)] = [i](int more) { return i * long(more); };
  }
  long sum = 0;
  for (const auto &[name, call] : calls) sum += call(int(name.size()));
  std::vector<int> numbers(rounds);
  for (int &one : numbers) one = rand();
  qsort(numbers.data(), numbers.size(), sizeof(int), compare);
  return sum + numbers[0];
}

static void run(double seconds) {
  timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  volatile long kept = 0;
  do {
    kept = kept + guarded(*tree(10, 2), 5) + guarded(*tree(40, 1), 9) + strings(200);
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (double(now.tv_sec - begin.tv_sec) + double(now.tv_nsec - begin.tv_nsec) / 1e9 < seconds);
}

int main(int argc, char **argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 1;
  std::thread other(run, seconds);
  run(seconds);
  other.join();
}
