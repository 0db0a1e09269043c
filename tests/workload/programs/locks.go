// SPDX-License-Identifier: Apache-2.0
// Threads of the Go runtime that contend for a lock.
package main
import ("sync"; "time"; "runtime")
func main() {
	runtime.GOMAXPROCS(2)
	var lock sync.Mutex
	var all sync.WaitGroup
	for i := 0; i < 4; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for j := 0; j < 20; j++ { lock.Lock(); time.Sleep(2 * time.Millisecond); lock.Unlock() }
		}()
	}
	all.Wait()
}
