// SPDX-License-Identifier: Apache-2.0

// Fill is the program of a container in the tests. It prints "blank" or the content of a disk, and writes to the whole disk.
// With --hold it keeps the disk open until SIGTERM. Without an argument it waits for SIGTERM, as the pause container does.
// It is statically linked, so it can be the only file in its image.
//
//	fill [[--hold] DISK]
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	args := os.Args[1:]
	hold := len(args) == 0
	if len(args) > 0 && args[0] == "--hold" {
		hold, args = true, args[1:]
	}
	if len(args) > 0 {
		f, err := os.OpenFile(args[0], os.O_RDWR, 0)
		if err != nil {
			fatal(err)
		}
		defer f.Close()
		found, err := fill(f)
		if err != nil {
			fatal(err)
		}
		fmt.Println(found)
	}
	if hold {
		<-stop
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "fill:", err)
	os.Exit(1)
}
