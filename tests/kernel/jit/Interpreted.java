// SPDX-License-Identifier: Apache-2.0

import java.util.List;
import java.util.concurrent.locks.LockSupport;

/** Threads that block for good in methods of several forms, and two that wait in turns in two methods. */
public class Interpreted {
	static final Object lock = new Object();

	interface Step<T> {
		T take(T[] values, int depth, long... more) throws Exception;
	}

	static String down(String[] values, int depth, long... more) throws Exception {
		if (depth > 0)
			return down(values, depth - 1, more);
		synchronized (lock) {
			return values[0];
		}
	}

	static void longer(int depth) throws Exception {
		if (depth > 0)
			longer(depth - 1);
		else
			Thread.sleep(40);
	}

	static void shorter(int depth) throws Exception {
		if (depth > 0)
			shorter(depth - 1);
		else
			Thread.sleep(4);
	}

	/** The return addresses of both are the same, those of the interpreter. */
	static String turns(String[] values, int depth, long... more) throws Exception {
		for (;;) {
			longer(depth);
			shorter(depth);
			depth = (depth + 7) % 60;
		}
	}

	static void start(String name, Step<String> step) {
		Thread thread = new Thread(() -> List.of(1).forEach(number -> {
			try {
				step.take(new String[1], 40, number);
			} catch (Exception problem) {
				throw new IllegalStateException(problem);
			}
		}), name);
		thread.start();
	}

	static final class Parks implements Step<String> {
		public String take(String[] values, int depth, long... more) {
			LockSupport.park(this);
			return null;
		}
	}

	public static void main(String[] arguments) throws Exception {
		synchronized (lock) {
			start("turns", Interpreted::turns);
			start("turns", Interpreted::turns);
			start("monitor", Interpreted::down);
			start("parks", new Parks());
			start("sleeps", (values, depth, more) -> {
				Thread.sleep(1_000_000);
				return null;
			});
			start("waits", (values, depth, more) -> {
				synchronized (values) {
					values.wait();
				}
				return null;
			});
			Thread.sleep(1_000_000);
		}
	}
}
