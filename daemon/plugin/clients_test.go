// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// crowdEnv names the socket to which this process connects many times; with streamsEnv it opens a stream each time.
const (
	crowdEnv   = "METALPLUG_PLUGIN_CROWD"
	streamsEnv = "METALPLUG_PLUGIN_STREAMS"
)

// crowd is how many clients come.
const crowd = 300

// beCrowd connects, says nothing, and stays until its input ends.
func beCrowd(path string) {
	for range crowd {
		if os.Getenv(streamsEnv) != "" {
			openStream(path)
			continue
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			os.Exit(1)
		}
		defer c.Close()
	}
	os.Stdout.WriteString("here\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// openStream opens a stream as the kubelet does, over a connection of its own, and reads nothing of it.
func openStream(path string) {
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		_, err = pluginapi.NewDevicePluginClient(conn).ListAndWatch(context.Background(), &pluginapi.Empty{})
	}
	if err != nil {
		os.Exit(1)
	}
}

// startCrowd has another process connect to the endpoint.
func (b *bench) startCrowd(env ...string) {
	b.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), crowdEnv+"="+b.sockets()[0]), env...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			b.t.Error(err)
		}
	})
	if _, err := io.ReadFull(stdout, make([]byte, len("here\n"))); err != nil {
		b.t.Fatal(err)
	}
}

// TestSilentClients: many clients that say nothing, or open a stream and read nothing, of another process or of the kubelet's, take few descriptors. The stream of
// the kubelet stays, devices come and go, and the next kubelet is served too.
func TestSilentClients(t *testing.T) {
	for name, come := range map[string]func(*bench){
		"of another process":                    func(b *bench) { b.startCrowd() },
		"of another process that opens streams": func(b *bench) { b.startCrowd(streamsEnv + "=1") },
		"of the kubelet": func(b *bench) {
			for range crowd {
				c, err := net.Dial("unix", b.sockets()[0])
				if err != nil {
					b.t.Fatal(err)
				}
				b.t.Cleanup(func() { c.Close() })
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			k := b.startKubelet()
			b.allocatable(k, 1)
			come(b)
			b.fewConnections()
			b.machine.Apply("")
			b.allocatable(k, 0)
			b.machine.Apply(widget)
			b.allocatable(k, 1)
			if n := k.Resource(resource).Lists; n != 3 { // since it registered
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

// fewConnections waits until the endpoint has no more than a few connections that were accepted.
func (b *bench) fewConnections() {
	b.t.Helper()
	path := b.sockets()[0]
	for limit := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		n, err := accepted(path)
		switch {
		case err != nil:
			b.t.Fatal(err)
		case n <= 9: // one of them is about to be closed
			return
		case time.Now().After(limit):
			b.t.Fatalf("%d connections", n)
		}
	}
}

// accepted counts the connections of this process to a socket that it listens on. The kernel lists an accepted socket with the
// path of the one that listens (net/unix/af_unix.c, unix_stream_connect).
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
		if flags, err := strconv.ParseUint(fields[3], 16, 32); err == nil && flags&(1<<16) == 0 { // __SO_ACCEPTCON: it listens
			n++
		}
	}
	return n, err
}
