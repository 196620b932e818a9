// SPDX-License-Identifier: Apache-2.0

package reset

import (
	"context"
	"fmt"
	"time"

	"github.com/metalplug/metalplug/daemon/exchange"
)

// Program is the name of the program that [Client] asks.
const Program = "metalplug-reset"

// grace is how much longer than the request allows the program may take to report its current step, and how much longer
// than that the client waits. Both together leave a second of the kubelet's 30 for a start when the request allows 25.
const grace = 2 * time.Second

// Client asks the program metalplug-reset. Its methods are safe for concurrent use.
type Client struct{ Peer exchange.Peer }

// Do sends a request and returns the answer, whatever that is: see [Answer.Err]. An error says that there is none: the
// program cannot be reached, answers nonsense, or ctx ended or the request's time was up long before it answered. Then the
// state of the device is not known. A survey ends with ctx.
func (c Client) Do(ctx context.Context, r Request) (Answer, error) {
	message := r.Encode()
	if _, err := ParseRequest(message); err != nil {
		return Answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout()+2*grace)
	defer cancel()
	reply, err := c.Peer.Ask(ctx, message)
	if err != nil {
		return Answer{}, err
	}
	a, err := ParseAnswer(reply)
	if err != nil {
		return Answer{}, fmt.Errorf("ask %s: %w", c.Peer.Program, err)
	}
	return a, nil
}
