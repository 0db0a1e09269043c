// SPDX-License-Identifier: Apache-2.0
import java.util.concurrent.locks.ReentrantLock;

/** Two threads that wait for each other's monitor, or with arguments for each other's ReentrantLock. */
public class Abba {
    static final ReentrantLock FIRST = new ReentrantLock(), SECOND = new ReentrantLock();

    static void take(Object one, Object other) {
        synchronized (one) {
            try {
                Thread.sleep(200);
            } catch (InterruptedException ended) {
                return;
            }
            synchronized (other) {
                return;
            }
        }
    }

    static void lock(ReentrantLock one, ReentrantLock other) {
        one.lock();
        try {
            Thread.sleep(200);
        } catch (InterruptedException ended) {
            return;
        }
        other.lock();
    }

    public static void main(String[] arguments) {
        boolean locks = arguments.length > 0;
        new Thread(!locks ? () -> take(FIRST, SECOND) : () -> lock(FIRST, SECOND), "one").start();
        new Thread(!locks ? () -> take(SECOND, FIRST) : () -> lock(SECOND, FIRST), "two").start();
    }
}
