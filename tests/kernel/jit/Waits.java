// SPDX-License-Identifier: Apache-2.0

/** Sleeps 300 times 3 ms, or as often as its argument says, below a method that becomes hot enough to be compiled. */
public class Waits {
	static long handleRequest(int n) throws InterruptedException {
		long sum = 0;
		for (int i = 0; i < 20000; i++)
			sum += (long) i * n;
		Thread.sleep(3);
		return sum;
	}

	public static void main(String[] arguments) throws InterruptedException {
		long sum = 0;
		int times = arguments.length > 0 ? Integer.parseInt(arguments[0]) : 300;
		for (int n = 0; n < times; n++)
			sum += handleRequest(n);
		System.out.println(sum);
	}
}
