// See spawn_await.lua.
package main

func main() {
	batch := argument(2)
	measure(func(n int) int {
		count := 0
		results := make([]chan int, batch)
		for i := 0; i < n/batch; i++ {
			for j := range results {
				result := make(chan int, 1)
				results[j] = result
				go func() { result <- 1 }()
			}
			for _, result := range results {
				count += <-result
			}
		}
		return count
	})
}
