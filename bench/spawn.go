// See spawn.lua.
package main

import "sync"

func main() {
	alive := argument(2)
	measure(func(n int) int {
		var group sync.WaitGroup
		count := 0
		for i := 0; i < n/alive; i++ {
			group.Add(alive)
			for j := 0; j < alive; j++ {
				go func() { group.Done() }()
			}
			group.Wait() // for as many as have called Done
			count += alive
		}
		return count
	})
}
