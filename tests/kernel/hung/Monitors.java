// SPDX-License-Identifier: Apache-2.0
/** A thread holds the monitors of two objects of a class, of an array and of the class; six others wait for them. */
public class Monitors {
    static class Repo {}

    static synchronized void all() throws InterruptedException {
        Thread.sleep(100_000);
    }

    static void wait(Object monitor) {
        synchronized (monitor) {
            return;
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        Object first = new Repo(), second = new Repo(), array = new int[3][];
        new Thread(() -> {
            synchronized (first) {
                synchronized (second) {
                    synchronized (array) {
                        try {
                            all();
                        } catch (InterruptedException ended) {
                            return;
                        }
                    }
                }
            }
        }, "holder").start();
        Thread.sleep(300);
        for (Object monitor : new Object[] {first, first, second, array, array, Monitors.class}) {
            new Thread(() -> wait(monitor), "waiter").start();
        }
    }
}
