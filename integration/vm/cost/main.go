//go:build integration

// SPDX-License-Identifier: Apache-2.0

// Command cost measures how long the helpers of the installed units take before a container with several disks starts. Its
// arguments are the names of disks, such as "loop1". It asks metalplug-holders who uses the disks, and then all at the same
// time metalplug-reset whether each disk is free. The floor is the same number of requests that the helpers refuse. So it
// contains the time that systemd needs to start the processes in their sandboxes.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/metalplug/metalplug/cgroup"
	"github.com/metalplug/metalplug/daemon/device"
	"github.com/metalplug/metalplug/daemon/exchange"
	"github.com/metalplug/metalplug/daemon/reset"
)

// rounds is the number of measurements.
const rounds = 9

func main() {
	if err := measure(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// disk is a disk with a request to check that it is free.
type disk struct {
	number  cgroup.Number
	request reset.Request
}

func diskNamed(name string) (d disk, err error) {
	sysPath := "/sys/devices/virtual/block/" + name
	number, err1 := os.ReadFile(sysPath + "/dev")
	seq, err2 := os.ReadFile(sysPath + "/diskseq")
	if err := errors.Join(err1, err2); err != nil {
		return d, err
	}
	d.number, err = cgroup.ParseNumber(true, strings.TrimSpace(string(number)))
	d.request = reset.Request{Do: reset.Prepare, TimeoutMS: time.Minute.Milliseconds(), Target: device.Target{
		SysPath: sysPath, Class: "node", Identity: map[string]string{"diskseq": strings.TrimSpace(string(seq))},
	}}
	return d, err
}

func measure(names []string) error {
	holders := cgroup.Client{Peer: exchange.Peer{Program: cgroup.Program, Socket: "/run/metalplug/holders.sock"}}
	resets := reset.Client{Peer: exchange.Peer{Program: reset.Program, Socket: "/run/metalplug/reset.sock"}}
	var disks []disk
	var numbers []cgroup.Number
	for _, name := range names {
		d, err := diskNamed(name)
		if err != nil {
			return err
		}
		disks, numbers = append(disks, d), append(numbers, d.number)
	}
	ctx := context.Background()
	refused := func(p exchange.Peer) error {
		answer, err := p.Ask(ctx, func() []byte { return []byte("{}{}") })
		if err == nil && !bytes.Contains(answer, []byte("malformed message")) { // otherwise this is not the floor
			err = fmt.Errorf("answer %q", answer)
		}
		return err
	}
	var ours, floor []time.Duration
	for range rounds {
		begun := time.Now()
		answer, err := holders.Holders(ctx, func() []cgroup.Number { return numbers })
		if err == nil && len(answer.Holders) > 0 {
			err = fmt.Errorf("process %d has a disk open", answer.Holders[0].PID)
		}
		err = errors.Join(err, atOnce(disks, func(d disk) error {
			answer, err := resets.Do(ctx, d.request)
			return errors.Join(err, answer.Err())
		}))
		ours = append(ours, time.Since(begun))
		begun = time.Now()
		err = errors.Join(err, refused(holders.Peer), atOnce(disks, func(disk) error { return refused(resets.Peer) }))
		floor = append(floor, time.Since(begun))
		if err != nil {
			return err
		}
	}
	slices.Sort(ours)
	slices.Sort(floor)
	ratio := float64(ours[rounds/2]) / float64(floor[rounds/2])
	fmt.Printf("%d disks are asked about and proven free: p50 %v, floor %v, ratio %.2f\n", len(disks), ours[rounds/2], floor[rounds/2], ratio)
	return nil
}

// atOnce calls do for all disks at the same time.
func atOnce(disks []disk, do func(disk) error) error {
	errs := make([]error, len(disks))
	var all sync.WaitGroup
	for i, d := range disks {
		all.Go(func() { errs[i] = do(d) })
	}
	all.Wait()
	return errors.Join(errs...)
}
