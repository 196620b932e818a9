// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// TestSilentClients connects many clients that make no call, or that open a stream and do not read it. These clients must
// use only a few descriptors. The stream of the kubelet must stay open, and hotplug must work. The endpoint must also serve
// the next kubelet.
func TestSilentClients(t *testing.T) {
	for name, come := range map[string]func(*testing.T, string){"silent": beSilent, "with a stream": openStream} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			k := b.startKubelet()
			b.allocatable(k, 1)
			for range 300 {
				come(t, b.sockets()[0])
			}
			b.fewConnections()
			b.machine.Apply("")
			b.allocatable(k, 0)
			b.machine.Apply(widget)
			b.allocatable(k, 1)
			if n := k.Resource(resource).Lists; n != 3 { // lists since the registration
				t.Errorf("%d lists came on the stream, want 3", n)
			}
			if _, err := b.client().GetDevicePluginOptions(t.Context(), &pluginapi.Empty{}); err != nil {
				t.Error(err)
			}
			k.Stop()
			b.allocatable(b.startKubelet(), 1)
		})
	}
}

// beSilent connects to a socket and makes no call.
func beSilent(t *testing.T, path string) {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
}

// openStream opens a stream like the kubelet, over a separate connection, and does not read it.
func openStream(t *testing.T, path string) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		t.Cleanup(func() { conn.Close() })
		_, err = pluginapi.NewDevicePluginClient(conn).ListAndWatch(t.Context(), &pluginapi.Empty{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fewConnections waits until the endpoint has only a few accepted connections.
func (b *bench) fewConnections() {
	b.t.Helper()
	path := b.sockets()[0]
	for limit := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		n, err := accepted(path)
		switch {
		case err != nil:
			b.t.Fatal(err)
		case n <= 9: // the endpoint is about to close one of the nine
			return
		case time.Now().After(limit):
			b.t.Fatalf("%d connections", n)
		}
	}
}

// accepted returns the number of accepted connections of this process at a socket. The kernel lists an accepted socket
// with the path of the listening one (net/unix/af_unix.c, unix_stream_connect).
func accepted(path string) (n int, err error) {
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return 0, err
	}
	mine := make(map[string]bool)
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, err
		}
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			mine[strings.TrimSuffix(inode, "]")] = true
		}
	}
	text, err := os.ReadFile("/proc/self/net/unix")
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line)) // Num RefCount Protocol Flags Type St Inode Path
		if len(fields) != 8 || fields[7] != path || !mine[fields[6]] {
			continue
		}
		if flags, err := strconv.ParseUint(fields[3], 16, 32); err == nil && flags&(1<<16) == 0 { // __SO_ACCEPTCON is not set, so the socket does not listen
			n++
		}
	}
	return n, err
}
