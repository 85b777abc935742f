// See echo.lua.
package main

import (
	"fmt"
	"net"
)

func serve(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, 1024)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		if _, err := conn.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// The backlog is not Go's to choose; it takes the system's.
func main() {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(server.Addr().(*net.TCPAddr).Port)
	for {
		conn, err := server.Accept()
		if err != nil {
			panic(err)
		}
		go serve(conn)
	}
}
