// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/plugin"
	"github.com/metalplug/metalplug/daemon/statefile"
	"github.com/metalplug/metalplug/udev"
)

// stack is the daemon from the event socket to the kubelet's stream, for a machine, in this process.
type stack struct {
	*machine
	source    *source
	wire      *wire
	inventory *inventory.Inventory
	client    *client
	close     func()
}

// newStack starts the stack for a machine with n devices. Only the first present devices are plugged in.
func (b *bench) newStack(n, present int) (*stack, error) {
	dir, err := b.subdir("s")
	if err != nil {
		return nil, err
	}
	s := &stack{source: &source{}}
	if s.machine, err = newMachine(filepath.Join(dir, "machine"), n); err != nil {
		return nil, err
	}
	s.source.devices = s.devices[:present]
	s.wire, err = newWire(func() (err error) {
		s.source.Monitor, err = udev.OpenMonitor(nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	stop, err := s.serve(dir)
	if err != nil {
		s.wire.close()
		return nil, err
	}
	s.close = func() {
		s.client.close()
		stop()
		s.wire.close()
		s.source.Close()
		os.RemoveAll(dir)
	}
	_, _, err = s.client.waitList("the devices", func(l list) bool { return l.healthy() == present })
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// serve starts the stack in a directory.
func (s *stack) serve(dir string) (stop func(), err error) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(null, nil)) // writes each line, like the daemon's log
	s.inventory = inventory.New(inventory.Options{
		Source: s.source, Host: s.host(), Rules: rules, Log: log, Store: statefile.Open(filepath.Join(dir, "state"), log),
	})
	watch := &plugin.Watch{Dir: dir, Log: log}
	endpoint := &plugin.Endpoint{
		Resource: plugin.Resource{Name: resource, Permissions: "rw", Variable: "METALPLUG_EXAMPLE_ORG_WIDGET"},
		Dir:      dir, Inventory: s.inventory, Host: s.host(), Watch: watch, Log: log, Parked: &plugin.Parked{},
		Allocated: func([]*inventory.Status) {}, Changed: func() {}, Start: func(context.Context, []*inventory.Status) error { return nil },
		Counted: func(context.Context) ([]string, error) { return nil, nil },
		Metrics: plugin.Metrics{
			Answered: func(string, string, error) {}, Registered: func(string, error) {}, Sent: func(time.Duration) {},
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	stop = func() {
		cancel()
		running.Wait()
		null.Close()
	}
	failed := make(chan error, 3)
	part := func(run func() error) { running.Go(func() { failed <- run() }) }
	watching, started := make(chan struct{}), make(chan struct{})
	part(func() error { return watch.Run(ctx, func() { close(watching) }) })
	<-watching
	part(func() error { return s.inventory.Run(ctx) })
	<-s.inventory.Ready()
	running.Go(func() { endpoint.Run(ctx, func() { close(started) }) })
	select {
	case <-started:
	case err = <-failed:
	case <-time.After(patience):
		err = errors.New("the endpoint does not start")
	}
	if err == nil {
		s.client, err = connectIn(dir)
	}
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// connectIn connects to the daemon's only socket in a directory.
func connectIn(dir string) (*client, error) {
	sockets, err := filepath.Glob(filepath.Join(dir, "mp-*.sock"))
	if err != nil {
		return nil, err
	}
	if len(sockets) != 1 {
		return nil, fmt.Errorf("find the daemon's socket in %s: there are %d", dir, len(sockets))
	}
	return connect(sockets[0])
}
