// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// waitingTask returns a task that is ready immediately and runs until its context ends.
func waitingTask(name string) task {
	return task{name, func(ctx context.Context, ready func()) error {
		ready()
		<-ctx.Done()
		return nil
	}}
}

func TestTasksEndTogether(t *testing.T) {
	for _, c := range []struct {
		last task
		want string
	}{
		{waitingTask("b"), "<nil>"}, // the context ends
		{task{"the broken one", func(context.Context, func()) error { return errors.New("no more") }}, "the broken one: no more"},
		{task{"the short one", func(_ context.Context, ready func()) error { ready(); return nil }}, "the short one: ended unexpectedly"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		allReady := func() {
			if c.want == "<nil>" {
				cancel()
			}
		}
		if err := runTasks(ctx, []task{waitingTask("a"), c.last}, allReady); fmt.Sprint(err) != c.want {
			t.Errorf("error %v, want %s", err, c.want)
		}
		cancel()
	}
}

func TestReadyOnlyWhenAllAre(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	late := task{"late", func(ctx context.Context, ready func()) error {
		<-release
		ready()
		<-ctx.Done()
		return nil
	}}
	allReady := make(chan struct{})
	done := make(chan error, 1)
	go func() { done <- runTasks(ctx, []task{waitingTask("a"), late}, func() { close(allReady) }) }()
	select {
	case <-allReady:
		t.Error("ready before the late one is")
	default:
	}
	close(release)
	<-allReady
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
