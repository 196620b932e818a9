// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"strings"
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

func TestTasksEndWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	signal := errors.New("terminated")
	if err := runTasks(ctx, []task{waitingTask("a"), waitingTask("b")}, func() { cancel(signal) }); err != nil {
		t.Errorf("a clean stop is the error %v", err)
	}
}

func TestFailedTaskEndsOthers(t *testing.T) {
	fails := task{"the broken one", func(context.Context, func()) error { return errors.New("no more") }}
	err := runTasks(t.Context(), []task{waitingTask("a"), fails}, func() {})
	if err == nil || err.Error() != "the broken one: no more" {
		t.Errorf("error %v", err)
	}
}

func TestTaskEndsEarly(t *testing.T) {
	ends := task{"the short one", func(_ context.Context, ready func()) error {
		ready()
		return nil
	}}
	err := runTasks(t.Context(), []task{waitingTask("a"), ends}, func() {})
	if err == nil || !strings.Contains(err.Error(), "the short one") {
		t.Errorf("error %v", err)
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
