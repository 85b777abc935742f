// See switch.lua.
package main

import (
	"runtime"
	"sync"
)

func main() {
	measure(func(n int) int {
		var group sync.WaitGroup
		var counts [2]int
		group.Add(2)
		for i := range counts {
			go func(count *int) {
				for j := 0; j < n/2; j++ {
					runtime.Gosched()
					*count++
				}
				group.Done()
			}(&counts[i])
		}
		group.Wait()
		return counts[0] + counts[1]
	})
}
