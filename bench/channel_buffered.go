// See channel_buffered.lua.
package main

func main() {
	capacity := argument(2)
	measure(func(n int) int {
		channel := make(chan int, capacity)
		go func() {
			for i := 0; i < n; i++ {
				channel <- i
			}
			close(channel)
		}()
		count := 0
		for range channel {
			count++
		}
		return count
	})
}
