// SPDX-License-Identifier: Apache-2.0

// Tenant is the program of a container in the stories.
//
//	tenant fill DISK  reads a disk, prints "blank" or what is on it, and writes on all of it
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tenant:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "fill" {
		found, err := fill(args[1])
		if err == nil {
			fmt.Println(found)
		}
		return err
	}
	return fmt.Errorf("usage: tenant fill DISK")
}
