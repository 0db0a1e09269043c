// SPDX-License-Identifier: Apache-2.0
/** Two threads that wait for each other's monitor. */
public class Abba {
    static final Object FIRST = new Object(), SECOND = new Object();

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

    public static void main(String[] arguments) {
        new Thread(() -> take(FIRST, SECOND), "one").start();
        new Thread(() -> take(SECOND, FIRST), "two").start();
    }
}
