// SPDX-License-Identifier: Apache-2.0

// Command completion prints the completion of metalplugctl for a shell: bash, zsh or fish. What it prints asks
// metalplugctl itself for the words, so that nothing but the name of the program is in it.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "completion: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, w io.Writer) error {
	program := &cobra.Command{Use: "metalplugctl"}
	if len(args) != 1 {
		return fmt.Errorf("name one shell: bash, zsh or fish")
	}
	switch args[0] {
	case "bash":
		return program.GenBashCompletionV2(w, true)
	case "zsh":
		return program.GenZshCompletion(w)
	case "fish":
		return program.GenFishCompletion(w, true)
	}
	return fmt.Errorf("shell %q is none of bash, zsh, fish", args[0])
}
