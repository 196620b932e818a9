// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/plugin"
)

// first is the first message of a stream, with its client.
type first struct {
	who string
	ids []string // IDs of the healthy devices
	err error
}

// listener opens streams as early as possible.
type listener struct {
	pluginapi.UnimplementedRegistrationServer
	dir    string
	firsts chan first
}

// Register opens the stream during the call, like the kubelet.
func (l listener) Register(_ context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	go l.listen("the kubelet", filepath.Join(l.dir, req.GetEndpoint()))
	return &pluginapi.Empty{}, nil
}

// serve simulates the kubelet of the directory with l.
func (l listener) serve(t *testing.T) {
	t.Helper()
	socket, err := net.Listen("unix", filepath.Join(l.dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, l)
	go server.Serve(socket)
	t.Cleanup(server.Stop)
}

// lurk opens a stream as soon as a socket accepts connections.
func (l listener) lurk(ctx context.Context) {
	for again := time.Tick(100 * time.Microsecond); ; {
		sockets, _ := filepath.Glob(filepath.Join(l.dir, "mp-*.sock"))
		for _, path := range sockets {
			if c, err := net.Dial("unix", path); err == nil {
				c.Close()
				l.listen("whoever comes at once", path)
				return
			}
		}
		select {
		case <-again:
		case <-ctx.Done():
			l.firsts <- first{who: "whoever comes at once", err: ctx.Err()}
			return
		}
	}
}

// listen receives the first message from a socket.
func (l listener) listen(who, path string) {
	ids, err := firstList(path)
	l.firsts <- first{who, ids, err}
}

func firstList(path string) (ids []string, err error) {
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := pluginapi.NewDevicePluginClient(conn).ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return nil, err
	}
	list, err := stream.Recv()
	for _, d := range list.GetDevices() {
		if d.GetHealth() == pluginapi.Healthy {
			ids = append(ids, d.GetID())
		}
	}
	return ids, err
}

// manyWidgets returns a machine with n widgets, and their IDs.
func manyWidgets(n int) (recording string, ids []string) {
	var blocks []string
	for i := range n {
		blocks = append(blocks, fmt.Sprintf("P: /devices/virtual/widget/widget%d\nN: widget%d\nE: DEVNAME=/dev/widget%d\n"+
			"E: SUBSYSTEM=widget\nE: ID_SERIAL=%c\nE: ID_SERIAL_SHORT=%[4]c\nE: MAJOR=240\nE: MINOR=%[1]d\n", i, i, i, 'A'+i))
		ids = append(ids, fmt.Sprintf("node-%c-widget", 'A'+i))
	}
	return strings.Join(blocks, "\n"), ids
}

// A list replaces the previous list. A first list with some devices missing would take these devices away from pods. So the
// first message of each stream must be the whole list, for any client at any time.
func TestFirstMessageIsCompleteList(t *testing.T) {
	recording, want := manyWidgets(9)
	for start := range 5 {
		t.Run(fmt.Sprintf("start %d", start), func(t *testing.T) {
			firsts := make(chan first, 100)
			b := newBenchOf(t, recording, func(e *plugin.Endpoint) {
				l := listener{dir: e.Dir, firsts: firsts}
				l.serve(t)
				go l.lurk(t.Context())
			})
			check := func(f first) {
				t.Helper()
				if slices.Sort(f.ids); f.err != nil || !slices.Equal(f.ids, want) {
					t.Errorf("the first message to %s has %v, error %v; want %v", f.who, f.ids, f.err, want)
				}
			}
			for range 2 {
				select {
				case f := <-firsts:
					check(f)
				case <-time.After(2 * patience):
					t.Fatal("nobody has a stream")
				}
			}
			for range 3 {
				ids, err := firstList(b.sockets()[0])
				check(first{"whoever comes later", ids, err})
			}
		})
	}
}
