// SPDX-License-Identifier: Apache-2.0

// Command operator simulates faults that prevent pods from getting devices. It prepares each fault on a node with recorded
// hardware and the installed programs, and runs the command that diagnoses it. It shows the output of that command.
//
//	go run ./integration/operator [-programs DIR] [WORD ...]
//
// With arguments, it plays only faults whose name contains one of the words. The exit code is 1 if a cause is not diagnosed.
// The tests of this package play the same faults, and check the example output in the man page of metalplugctl.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	programs := flag.String("programs", "bin", "where metalplugd and metalplugctl are, `DIR`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	unnamed, err := show(ctx, os.Stdout, *programs, selectFaults(flag.Args()))
	if err != nil {
		fmt.Fprintf(os.Stderr, "operator: %v\n", err)
	}
	if err != nil || unnamed > 0 {
		stop()
		os.Exit(1)
	}
}

// selectFaults returns the faults whose name contains one of the words, or all without words.
func selectFaults(words []string) []fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool {
		return len(words) > 0 && !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(f.name, word) })
	})
}

// show plays faults and returns the number of those that were not diagnosed.
func show(ctx context.Context, out io.Writer, programs string, all []fault) (unnamed int, err error) {
	for _, f := range all {
		fmt.Fprintf(out, "%s\n\n$ metalplugctl %s\n", strings.ToUpper(f.name), strings.Join(f.ask, " "))
		a, err := f.play(ctx, programs)
		if err != nil {
			return unnamed, fmt.Errorf("%s: %w", f.name, err)
		}
		fmt.Fprint(out, a.text)
		verdict := "=> it is named: "
		if !f.checkAnswer(a) {
			verdict = fmt.Sprintf("=> NOT NAMED (exit %d, want %d): ", a.code, f.code)
			unnamed++
		}
		fmt.Fprintf(out, "%s%s\n\n\n", verdict, f.cause)
	}
	fmt.Fprintf(out, "%d of %d faults are named by one command\n", len(all)-unnamed, len(all))
	return unnamed, nil
}
