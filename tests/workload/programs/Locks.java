// SPDX-License-Identifier: Apache-2.0
// Threads of a JVM that contend for a lock and a monitor.
import java.util.concurrent.locks.ReentrantLock;
public class Locks {
    static final ReentrantLock LOCK = new ReentrantLock();
    static final Object MONITOR = new Object();
    static void work() {
        for (int i = 0; i < 10; i++) {
            LOCK.lock();
            try { Thread.sleep(3); } catch (InterruptedException e) { } finally { LOCK.unlock(); }
            synchronized (MONITOR) {
                try { Thread.sleep(3); } catch (InterruptedException e) { }
            }
        }
    }
    public static void main(String[] arguments) {
        for (int i = 0; i < 3; i++) new Thread(Locks::work, "worker" + i).start();
    }
}
