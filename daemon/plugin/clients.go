// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"os"
	"slices"

	"google.golang.org/grpc/peer"

	"github.com/metalplug/metalplug/internal/clients"
)

// maxClients is the maximum number of connections to one endpoint's socket. The kubelet has one connection for its
// stream, and another one during a registration (kubernetes v1.36 pkg/kubelet/cm/devicemanager/plugin/v1beta1, client.go
// and handler.go).
const maxClients = 8

// surplus returns the client to disconnect, or nil. Only uid 0 and metalplugd's own uid may be clients. A new client may be
// the kubelet. Therefore, if there are too many clients, the result is the oldest one that is not the kubelet.
func (e *Endpoint) surplus(open []*clients.Client) *clients.Client {
	newest := open[len(open)-1]
	switch {
	case newest.Uid != 0 && newest.Uid != uint32(os.Geteuid()):
		return newest
	case len(open) <= maxClients:
		return nil
	}
	oldest := open[slices.IndexFunc(open, func(c *clients.Client) bool { return !e.streams.isKubelet(c) })]
	e.crowded.Do(func() {
		e.Log.Warn("too many clients", "detail", fmt.Sprintf("process %d was disconnected from the plugin socket; to see the other clients: ss -xp", oldest.Pid))
	})
	return oldest
}

// clientOf returns the client that made the current call, or nil.
func clientOf(ctx context.Context) *clients.Client {
	if p, ok := peer.FromContext(ctx); ok {
		c, _ := p.Addr.(*clients.Client)
		return c
	}
	return nil
}
