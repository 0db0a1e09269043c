// SPDX-License-Identifier: Apache-2.0

/** Sleeps 300 times 3 ms below a method that becomes hot enough to be compiled. */
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
		for (int n = 0; n < 300; n++)
			sum += handleRequest(n);
		System.out.println(sum);
	}
}
