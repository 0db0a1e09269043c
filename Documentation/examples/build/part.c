/* SPDX-License-Identifier: Apache-2.0 */
/* One of six parts (PART): many functions, which take the compiler some time. */
#include "version.h"

#define PASTE(a, b) a##b
#define NAME(a, b) PASTE(a, b)

#define F(n) \
	static double NAME(f, n)(double x, int k) \
	{ \
		double sum = n; \
		for (int i = 0; i < k; i++) \
			sum = sum * x + (i % (n + 3)) * (x - n) + (k & i); \
		switch (k % 7) { \
		case 0: return sum * n; \
		case 1: return sum - n; \
		case 2: return sum / (x + n + 1); \
		default: return sum; \
		} \
	}
#define F10(n) F(NAME(n, 0)) F(NAME(n, 1)) F(NAME(n, 2)) F(NAME(n, 3)) F(NAME(n, 4)) \
	F(NAME(n, 5)) F(NAME(n, 6)) F(NAME(n, 7)) F(NAME(n, 8)) F(NAME(n, 9))
#define C(n) +NAME(f, n)(x, k)
#define C10(n) C(NAME(n, 0)) C(NAME(n, 1)) C(NAME(n, 2)) C(NAME(n, 3)) C(NAME(n, 4)) \
	C(NAME(n, 5)) C(NAME(n, 6)) C(NAME(n, 7)) C(NAME(n, 8)) C(NAME(n, 9))

F10(1) F10(2) F10(3) F10(4) F10(5)

double NAME(part, PART)(double x, int k)
{
	return 0 C10(1) C10(2) C10(3) C10(4) C10(5);
}

#if PART == 1
double part2(double, int), part3(double, int), part4(double, int), part5(double, int), part6(double, int);

int main(int argc, char **argv)
{
	double x = argc;

	return part1(x, argc) + part2(x, argc) + part3(x, argc) + part4(x, argc) + part5(x, argc) +
		part6(x, argc) + argv[0][0] + VERSION[0] > 1e9;
}
#endif
