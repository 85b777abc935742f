// See channel_unbuffered.lua.
package main

func main() {
	measure(func(n int) int {
		ping, pong := make(chan int), make(chan int)
		go func() {
			for value := range ping {
				pong <- value
			}
		}()
		count := 0
		for i := 0; i < n; i++ {
			ping <- i
			if <-pong == i {
				count++
			}
		}
		close(ping)
		return count
	})
}
