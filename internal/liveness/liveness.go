// SPDX-License-Identifier: Apache-2.0

// Package liveness finds a loop that no longer makes progress. Nothing wakes up until another goroutine asks.
package liveness

import (
	"context"
	"fmt"
	"sync"
)

// Probe asks one loop whether it makes progress. The zero value is ready. Its methods are safe for concurrent use.
type Probe struct {
	once  sync.Once
	asked chan struct{}
	ended chan struct{}
	end   func()
}

func (p *Probe) init() {
	p.once.Do(func() {
		p.asked, p.ended = make(chan struct{}), make(chan struct{})
		p.end = sync.OnceFunc(func() { close(p.ended) })
	})
}

// Asked returns the channel from which the loop receives a question. To receive it is the answer.
func (p *Probe) Asked() <-chan struct{} {
	p.init()
	return p.asked
}

// End answers all questions from now on. The loop calls it when it returns.
func (p *Probe) End() {
	p.init()
	p.end()
}

// Alive returns when the loop, which may start later, has answered or has ended. The error is that of ctx with the name of the
// loop.
func (p *Probe) Alive(ctx context.Context, name string) error {
	p.init()
	select {
	case p.asked <- struct{}{}:
	case <-p.ended:
	case <-ctx.Done():
		return fmt.Errorf("wait for the %s: %w", name, ctx.Err())
	}
	return nil
}

// Poke puts a signal into a channel of one slot, unless there is one. It does not block.
func Poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
