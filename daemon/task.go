// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"sync"
)

// task is a part of the daemon that runs as long as the daemon does.
type task struct {
	name string
	// run works until ctx ends. It calls ready once, as soon as others can rely on it. Returning before ctx ends, with
	// or without an error, ends the daemon.
	run func(ctx context.Context, ready func()) error
}

// runTasks runs the tasks until ctx ends or one of them does, whose error it then returns, and waits for all of them.
// allReady is called when each has called its ready.
func runTasks(parent context.Context, tasks []task, allReady func()) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	var running, starting sync.WaitGroup
	starting.Add(len(tasks))
	for _, t := range tasks {
		running.Go(func() {
			ready := sync.OnceFunc(starting.Done)
			defer ready()
			err := t.run(ctx, ready)
			if ctx.Err() == nil && err == nil {
				err = fmt.Errorf("it ended by itself")
			}
			if err != nil {
				cancel(fmt.Errorf("%s: %w", t.name, err))
			}
		})
	}
	starting.Wait()
	if ctx.Err() == nil {
		allReady()
	}
	running.Wait()
	if parent.Err() != nil {
		return nil // any other error followed from that
	}
	return context.Cause(ctx)
}
