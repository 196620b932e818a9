// SPDX-License-Identifier: Apache-2.0

// Rival is another device plugin. It offers N devices until SIGTERM.
//
//	rival RESOURCE N
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rival:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: rival RESOURCE N")
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	return servePlugin(args[0], n)
}
