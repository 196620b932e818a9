//go:build integration

// SPDX-License-Identifier: Apache-2.0

// Command ask starts metalplug-reset from its own directory, passes standard input as the request, and prints the
// answer.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/reset"
)

func main() {
	request, err := io.ReadAll(os.Stdin)
	if err == nil {
		var answer []byte
		answer, err = exchange.Peer{Program: reset.Program, Socket: exchange.Direct, Config: "/tmp/metalplug.toml"}.Ask(context.Background(), func() []byte { return request })
		os.Stdout.Write(answer)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
