// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"sync"
)

// task is a part of the daemon that runs for as long as the daemon does.
type task struct {
	name string
	// run works until ctx ends. It calls ready once, as soon as other tasks can rely on it. If run returns before ctx
	// ends, with or without an error, the daemon stops.
	run func(ctx context.Context, ready func()) error
}

// runTasks runs the tasks until ctx or a task ends, and then waits for all of them. It returns the error of the first
// task that ended. It calls allReady when all tasks have called ready.
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
				err = fmt.Errorf("it ended unexpectedly")
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
		return nil // errors that tasks return because ctx has ended do not matter
	}
	return context.Cause(ctx)
}
