// SPDX-License-Identifier: Apache-2.0

// Command bench measures the daemon, and compares it with its budgets. In the same run it measures the floor, which is the
// least time that the same work takes without the daemon. It prints one table and writes bench.json.
//
//	go run ./integration/bench [-only REGEXP] [-runs N]
//
// It needs bin/metalplugd, and root for a network namespace in which it acts as udevd. A missed budget is only printed.
// The exit code is not 0 if something could not be measured.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"sync"
	"syscall"
)

// bench is one run of the program.
type bench struct {
	dir    string // directory in memory for all written files
	daemon string // metalplugd
	runs   int    // number of measurements, or 0 for the default of each row

	mu       sync.Mutex
	children []*process // all started processes
}

// row is a group of results that are measured together.
type row struct {
	name    string
	measure func(*bench) ([]result, error)
}

var rows = []row{
	{"event", (*bench).event},
	{"kubelet", (*bench).measureRestarts},
	{"allocate", (*bench).allocate},
	{"change", (*bench).change},
	{"burst", (*bench).burst},
	{"idle", (*bench).idle},
	{"start", (*bench).start},
	{"inspection", (*bench).inspection},
	{"bundles", (*bench).measureBundles},
	{"probe", (*bench).probe},
	{"holders", (*bench).measureHolders},
	{"attack", (*bench).attack},
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == registerVerb { // the floor for the kubelet's restarts, in a separate process
		fatal(register(os.Args[2]))
		return
	}
	only := flag.String("only", "", "measure only the rows whose name matches `REGEXP`: "+rowNames())
	runs := flag.Int("runs", 0, "measure everything `N` times; 0: as often as is needed for the percentiles")
	daemon := flag.String("daemon", "bin/metalplugd", "the daemon's `FILE`")
	out := flag.String("out", "bench.json", "where the results are written, `FILE`")
	profile := flag.String("cpuprofile", "", "write a profile of this process, with the daemon's parts in it, to `FILE`")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err == nil {
		err = runProfiled(*profile, func() error { return run(*daemon, *out, *runs, pattern) })
	}
	fatal(err)
}

// runProfiled calls f, and writes a profile if there is a file for it.
func runProfiled(file string, f func() error) error {
	if file == "" {
		return f()
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := pprof.StartCPUProfile(out); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	return f()
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func rowNames() string {
	names := ""
	for _, r := range rows {
		names += r.name + " "
	}
	return names
}

// run measures the rows that match. It prints and writes all results, even if some measurements fail.
func run(daemon, out string, runs int, only *regexp.Regexp) (err error) {
	daemon, err = filepath.Abs(daemon)
	if err == nil {
		_, err = os.Stat(daemon)
	}
	if err != nil {
		return fmt.Errorf("find the daemon: %w: build it with make", err)
	}
	b := &bench{daemon: daemon, runs: runs}
	// A machine with 10,000 devices has 100,000 files, so they are in memory. The name is short, because the path of a
	// unix socket has at most 107 bytes.
	if b.dir, err = os.MkdirTemp("/dev/shm", "mp"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	go b.abortOnSignal()
	if err := os.Setenv("TMPDIR", b.dir); err != nil { // the daemon writes its recordings there
		return err
	}
	var results []result
	var errs []error
	for _, r := range rows {
		if !only.MatchString(r.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring: %s\n", r.name)
		measured, err := r.measure(b)
		if err != nil {
			errs = append(errs, fmt.Errorf("measure %s: %w", r.name, err))
		}
		results = append(results, measured...)
	}
	printTable(os.Stdout, results)
	return errors.Join(append(errs, writeJSON(out, results))...)
}

// abortOnSignal ends all processes and removes all files when the program is interrupted.
func (b *bench) abortOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	<-signals
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.children {
		_ = p.Process.Kill() // most processes have ended already
	}
	os.RemoveAll(b.dir)
	os.Exit(1)
}

// countSamples returns the number of measurements.
func (b *bench) countSamples(usual int) int {
	if b.runs > 0 {
		return b.runs
	}
	return usual
}

// subdir creates a directory for one row.
func (b *bench) subdir(name string) (string, error) {
	dir, err := os.MkdirTemp(b.dir, name)
	if err != nil {
		return "", fmt.Errorf("make a directory: %w", err)
	}
	return dir, nil
}
