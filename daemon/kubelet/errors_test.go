// SPDX-License-Identifier: Apache-2.0

package kubelet_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/metalplug/metalplug/daemon/kubelet"
)

func TestReadable(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("plain"), "plain"},
		{status.Error(codes.Unknown, "resource name x is invalid"), "resource name x is invalid"},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), "no answer after 5s; check that the kubelet listens there and works"},
		{
			status.Error(codes.Unavailable, `connection error: desc = "error writing server preface: write unix: broken pipe"`),
			"disconnected, or uses another protocol; to check that the kubelet listens there: ss -xlp",
		},
		{
			status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial unix /a/b: connect: connection refused"`),
			"connect: connection refused",
		},
		{status.Error(codes.Unavailable, `connection error: desc = broken`), "disconnected, or uses another protocol; to check that the kubelet listens there: ss -xlp"},
	} {
		got := kubelet.CleanError(c.err, 5*time.Second)
		if got.Error() != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestWhoDoesNotAnswer checks gRPC's error for a missing socket.
func TestWhoDoesNotAnswer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	want := "query " + socket + ": connect: no such file or directory"
	if _, err := kubelet.Allocatable(t.Context(), socket); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, err := (&kubelet.Holders{Socket: socket, Dir: t.TempDir()}).Ask(t.Context(), nil); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
