// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"sync"
)

// pulse lets a loop show that it goes round: it receives from beats, and who asks waits until it has. The zero value is
// ready.
type pulse struct {
	once sync.Once
	made chan struct{}
}

func (p *pulse) beats() chan struct{} {
	p.once.Do(func() { p.made = make(chan struct{}) })
	return p.made
}

// wait returns once the loop has gone round, or with the error of ctx.
func (p *pulse) wait(ctx context.Context) error {
	select {
	case p.beats() <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
