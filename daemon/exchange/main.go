// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Main is the main function of a program that answers one request. Main calls serve for this request and returns the exit code of
// the program. If an operator starts the program manually, Main prints the text "about", which describes the program and names
// the command to use instead.
func Main(name, about string, serve func() error) int {
	if args := os.Args[1:]; len(args) > 0 {
		if slices.Contains([]string{"--help", "-help", "-h"}, args[0]) {
			fmt.Fprintf(os.Stdout, "%s %s\n", name, about)
			return 0
		}
		fmt.Fprintf(os.Stderr, "%s: unexpected argument: %q\nSee '%s --help'.\n", name, args[0], name)
		return 2
	}
	err := serve()
	switch {
	case err == nil:
		return 0
	case errors.Is(err, unix.ENOTSOCK):
		fmt.Fprintf(os.Stderr, "%s: standard input is not a socket, so there is no request\n%s %s\n", name, name, about)
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	return 1
}
