// What the Go contenders share.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Numbers from the command line.
func argument(i int) int {
	n, err := strconv.Atoi(os.Args[i])
	if err != nil {
		panic(err)
	}
	return n
}

// CPU time of this process, in seconds.
func cpu() float64 {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	spent := usage.Utime.Nano() + usage.Stime.Nano()
	return time.Duration(spent).Seconds()
}

// Resident bytes of this process.
func resident() float64 {
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		panic(err)
	}
	_, text, _ = bytes.Cut(text, []byte("\nRss:"))
	kilobytes, err := strconv.Atoi(string(bytes.Fields(text)[0]))
	if err != nil {
		panic(err)
	}
	return float64(kilobytes) * 1024
}

// Runs a tenth of the work to warm up, then all of it; work returns how many
// times it did what it does n times.
func measure(work func(n int) int) {
	n := argument(1)
	work(n / 10)
	start := cpu()
	done := work(n)
	fmt.Println("rate", float64(n)/(cpu()-start))
	if done != n {
		panic(done)
	}
}
