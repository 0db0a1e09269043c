// SPDX-License-Identifier: Apache-2.0
// Goroutines that wait for known things. Prints its own list of them, and at the end of its input the profile of its
// waits. Argument: the number of goroutines that wait again and again, for a channel and then for a lock.
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"time"
)

type Repo struct{ lock sync.Mutex }

func (r *Repo) Save() { r.lock.Lock(); r.lock.Unlock() } // inlined into its caller

//go:noinline
func saver(r *Repo) { r.Save() }

//go:noinline
func worker(work chan int) { <-work }

//go:noinline
func sender(work chan int) { work <- 1 }

//go:noinline
func chooser(a, b chan int) {
	select {
	case <-a:
	case <-b:
	}
}

//go:noinline
func sleeper() { time.Sleep(time.Hour) }

//go:noinline
func reader(c net.Conn) { c.Read(make([]byte, 1)) }

//go:noinline
func deep(n int, work chan int) {
	if n > 0 { deep(n-1, work) }
	<-work
}

//go:noinline
func waits(ticks chan int) { <-ticks }

//go:noinline
func locks(lock *sync.Mutex) { lock.Lock(); lock.Unlock() }

func churn(lock *sync.Mutex, ticks chan int) {
	for { waits(ticks); locks(lock) }
}

func main() {
	number, _ := strconv.Atoi(os.Args[1])
	repo, work, full, lock, ticks := &Repo{}, make(chan int), make(chan int), &sync.Mutex{}, make(chan int, 1000)
	repo.lock.Lock()
	listener, _ := net.Listen("tcp", "127.0.0.1:0")
	for i := 0; i < 9; i++ { go worker(work) }
	for i := 0; i < 3; i++ { go saver(repo) }
	for i := 0; i < 4; i++ { go chooser(work, make(chan int)) }
	for i := 0; i < 5; i++ { go sleeper() }
	for i := 0; i < 2; i++ { go sender(full) }
	for i := 0; i < 30; i++ { go deep(i, work) }
	connection, _ := net.Dial("tcp", listener.Addr().String())
	go reader(connection)
	time.Sleep(100 * time.Millisecond)
	pprof.Lookup("goroutine").WriteTo(os.Stdout, 2)
	fmt.Println("ready")
	runtime.SetBlockProfileRate(1)
	for i := 0; i < number; i++ { go churn(lock, ticks) }
	for number > 0 && len(os.Args) == 2 {
		go func() { bufio.NewReader(os.Stdin).ReadString('\n'); os.Args = append(os.Args, "end") }()
		for len(os.Args) == 2 {
			time.Sleep(10 * time.Millisecond)
			lock.Lock()
			for i := 0; i < number; i++ { ticks <- i }
			time.Sleep(20 * time.Millisecond)
			lock.Unlock()
		}
		pprof.Lookup("block").WriteTo(os.Stdout, 1)
	}
	bufio.NewReader(os.Stdin).ReadString('\n')
}
