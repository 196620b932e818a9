// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"sync"
)

// task is a part of the daemon that runs until the daemon stops.
type task struct {
	name string
	// run does the work of the task until ctx ends. run calls ready once, as soon as other tasks can rely on this task. If run
	// returns before ctx ends, the daemon stops, even if there was no error.
	run func(ctx context.Context, ready func()) error
}

// runTasks runs the tasks until ctx ends or a task ends. runTasks calls allReady when all tasks have called ready. When one task
// ends, runTasks stops the others and waits for them. runTasks returns the error of the task that ended first.
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
				err = fmt.Errorf("ended unexpectedly")
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
		return nil // after ctx has ended, the errors of tasks are ignored
	}
	return context.Cause(ctx)
}
