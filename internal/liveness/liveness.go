// SPDX-License-Identifier: Apache-2.0

// Package liveness detects loops that make no progress. Loops do not report regularly, because regular reports would wake the
// processor. A loop answers only when another goroutine asks.
package liveness

import (
	"context"
	"fmt"
	"sync"
)

// Probe checks that a loop makes progress. The zero value is ready for use. The methods are safe for concurrent use.
type Probe struct {
	once  sync.Once
	asked chan struct{}
	ended chan struct{}
}

func (p *Probe) init() {
	p.once.Do(func() { p.asked, p.ended = make(chan struct{}), make(chan struct{}) })
}

// Asked returns the channel on which the loop must receive questions. Receiving a question counts as answering it.
func (p *Probe) Asked() <-chan struct{} {
	p.init()
	return p.asked
}

// End answers all future questions. The loop must call End once, when it returns.
func (p *Probe) End() {
	p.init()
	close(p.ended)
}

// Alive blocks until the loop has answered or ended, or until ctx ends. Alive may be called before the loop starts. If ctx ends,
// Alive returns the context's error, together with the loop's name.
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

// Poke sends a signal to a channel with a buffer of one. If the channel already contains a signal, Poke does nothing. Poke does
// not block.
func Poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
