// See sleepers.lua.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

func main() {
	n := argument(1)
	seconds, err := strconv.ParseFloat(os.Args[2], 64)
	if err != nil {
		panic(err)
	}
	var asleep, awake int64
	var group sync.WaitGroup
	memory, start := resident(), cpu()

	group.Add(n)
	for i := 1; i <= n; i++ {
		go func(i int) {
			atomic.AddInt64(&asleep, 1)
			more := time.Duration(i*7919%500) * time.Millisecond
			time.Sleep(time.Duration(seconds*1e9) + more)
			atomic.AddInt64(&awake, 1)
			group.Done()
		}(i)
	}
	for atomic.LoadInt64(&asleep) < int64(n) {
		runtime.Gosched()
	}
	if atomic.LoadInt64(&awake) > 0 {
		panic("not all asleep at once: give them more time")
	}
	fmt.Println("bytes", (resident()-memory)/float64(n))
	group.Wait()
	fmt.Println("cpu", (cpu()-start)*1e6/float64(n))
}
