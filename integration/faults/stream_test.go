// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// TestUnreadStream opens a stream and reads nothing from it. The other streams must not wait. When the test
// finally reads, it must get only the newest list.
func TestUnreadStream(t *testing.T) {
	noLeaks(t)
	const (
		n       = 4000 // a list of so many devices exceeds the window of the stream, 64 KiB (RFC 9113, 6.9.2)
		changes = 30
	)
	c := newCrowd(t, n, 0)
	source := newHints(c)
	h := newCrowded(t, source, c, 0)
	h.waitHealthy(n)
	lazy, stop := h.open()
	defer stop()
	for round := range changes {
		source.send(h.toggle(t, round, false))
		h.waitHealthy(n - round - 1)
	}
	for read := 1; ; read++ {
		list, err := lazy.Recv()
		if err != nil {
			t.Fatal(err)
		}
		healthy := 0
		for _, d := range list.GetDevices() {
			if d.GetHealth() == pluginapi.Healthy {
				healthy++
			}
		}
		if healthy == n-changes {
			t.Logf("the newest of %d lists was read as number %d", changes, read)
			if read > 10 {
				t.Errorf("%d lists were kept for it", read)
			}
			return
		}
	}
}

// open opens another stream of the widgets.
func (h *crowded) open() (grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse], func()) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 5*time.Minute)
	names, err := filepath.Glob(filepath.Join(h.setup.dir, "mp-*"))
	for _, name := range names {
		conn, dialErr := grpc.NewClient("unix:"+name, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithInitialWindowSize(64<<10), grpc.WithStaticStreamWindowSize(64<<10))
		if err = dialErr; err != nil {
			break
		}
		stream, openErr := pluginapi.NewDevicePluginClient(conn).ListAndWatch(ctx, &pluginapi.Empty{})
		if err = openErr; err != nil {
			break
		}
		first, readErr := stream.Recv()
		if err = readErr; err == nil && len(first.GetDevices()) > 0 {
			return stream, func() {
				cancel()
				conn.Close()
			}
		}
		conn.Close() // the connection for the disks
	}
	cancel()
	h.t.Fatal(fmt.Errorf("open a stream of %v: %w", names, err))
	return nil, nil
}
