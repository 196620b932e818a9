// SPDX-License-Identifier: Apache-2.0

// Tenant is the program of a container in the stories.
//
//	tenant fill DISK          reads a disk, prints "blank" or what is on it, and writes on all of it
//	tenant plugin RESOURCE N  is a device plugin with N devices until SIGTERM
package main

import (
	"fmt"
	"os"
	"strconv"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tenant:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "fill":
		found, err := fill(args[1])
		if err == nil {
			fmt.Println(found)
		}
		return err
	case len(args) == 3 && args[0] == "plugin":
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return servePlugin(args[1], n)
	}
	return fmt.Errorf("usage: tenant fill DISK|plugin RESOURCE N")
}
