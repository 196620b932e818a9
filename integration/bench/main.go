// SPDX-License-Identifier: Apache-2.0

// Command bench measures every budget of the daemon beside its floor: the least that the same work takes without us, on
// the same machine and in the same run. It prints one table and writes bench.json.
//
//	go run ./integration/bench [-only REGEXP] [-runs N]
//
// It needs root, for a network namespace in which it plays udevd, and bin/metalplugd. A budget that is missed is
// printed as missed; the exit code is not 0 only where something could not be measured.
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
	dir    string // for everything that is written, in memory
	daemon string // metalplugd
	runs   int    // how often each thing is measured; 0: as often as its row says

	mu       sync.Mutex
	children []*process // all that were started
}

// row is what is measured together.
type row struct {
	name    string
	measure func(*bench) ([]result, error)
}

var rows = []row{
	{"event", (*bench).event},
	{"kubelet", (*bench).restarts},
	{"allocate", (*bench).allocate},
	{"change", (*bench).change},
	{"burst", (*bench).burst},
	{"idle", (*bench).idle},
	{"start", (*bench).start},
	{"look", (*bench).look},
	{"probe", (*bench).probe},
	{"holders", (*bench).holders},
	{"attack", (*bench).attack},
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == registerVerb { // the floor of the kubelet's restarts, in a process of its own
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
		err = profiled(*profile, func() error { return run(*daemon, *out, *runs, pattern) })
	}
	fatal(err)
}

// profiled calls f, under the profiler if there is a file for what it finds.
func profiled(file string, f func() error) error {
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

// run measures the rows that match. What could be measured is printed and written, whatever else went wrong.
func run(daemon, out string, runs int, only *regexp.Regexp) (err error) {
	daemon, err = filepath.Abs(daemon)
	if err == nil {
		_, err = os.Stat(daemon)
	}
	if err != nil {
		return fmt.Errorf("find the daemon: %w: build it with make", err)
	}
	b := &bench{daemon: daemon, runs: runs}
	// In memory: a machine of 10,000 devices is 100,000 files. Short: the path of a unix socket has 107 bytes.
	if b.dir, err = os.MkdirTemp("/dev/shm", "mp"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	go b.abortOnSignal()
	if err := os.Setenv("TMPDIR", b.dir); err != nil { // for the daemon's recordings
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

// abortOnSignal ends everything, and leaves nothing behind, when somebody wants that.
func (b *bench) abortOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	<-signals
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.children {
		_ = p.Process.Kill() // most have ended
	}
	os.RemoveAll(b.dir)
	os.Exit(1)
}

// times returns how often something is measured.
func (b *bench) times(usual int) int {
	if b.runs > 0 {
		return b.runs
	}
	return usual
}

// subdir makes a directory that no other row uses.
func (b *bench) subdir(name string) (string, error) {
	dir, err := os.MkdirTemp(b.dir, name)
	if err != nil {
		return "", fmt.Errorf("make a directory: %w", err)
	}
	return dir, nil
}
