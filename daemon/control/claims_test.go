// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/metalplug/metalplug/daemon/api"
	"github.com/metalplug/metalplug/daemon/control"
	"github.com/metalplug/metalplug/daemon/inventory"
)

// claims simulates the daemon's claims. The UID in a request selects the answer.
func claims(o *control.Options) {
	errs := map[string]error{
		"working": control.ErrWorking, "released": control.ErrReleased, "unknown": inventory.ErrUnknownDevice, "held": errors.New("the device is held"),
	}
	o.Prepare = func(_ context.Context, claim api.ClaimRef, ask api.Claim) (p api.Prepared, err error) {
		p.Requests = []api.PreparedRequest{{Name: ask.Requests[0].Name, CDI: []string{claim.String()}}}
		return p, errs[claim.UID]
	}
	o.Unprepare = func(_ context.Context, uid string) error { return errs[uid] }
}

func TestClaims(t *testing.T) {
	b := start(t, machine(), claims)
	one := `{"namespace":"ns","name":"c","requests":[{"name":"a/b","devices":["x"]}]}`
	many := strings.Repeat(`"x",`, 33)
	for _, c := range []struct {
		path, body, want string
	}{
		{"u1/prepare", one, `200 {"requests":[{"name":"a/b","cdi":["ns/c"]}]}`},
		{"u1/unprepare", "", "200 {}"},
		{"working/prepare", one, "503 the claim is not prepared yet"},
		{"working/unprepare", "", "503"},
		{"released/prepare", one, "409 the claim was released"},
		{"unknown/prepare", one, "404"},
		{"held/prepare", one, "409 the device is held"},
		{"..%2fx/prepare", one, "400"},
		{"u_1/prepare", one, "400"},
		{"%2e%2e%2f/unprepare", "", "400"},
		{"u1/prepare", "", "400"},
		{"u1/prepare", "{}", "400"},
		{"u1/prepare", `{"requests":[{"name":"A","devices":["x"]}]}`, "400"},
		{"u1/prepare", `{"requests":[{"name":"a","devices":[]}]}`, "400"},
		{"u1/prepare", `{"requests":[{"name":"a","devices":["x","x"]}]}`, "400"},
		{"u1/prepare", `{"requests":[{"name":"a","devices":["x"]},{"name":"b","admin":true,"devices":["x"]}]}`, "200"},
		{"u1/prepare", `{"requests":[{"name":"a","devices":[` + many + `"y"]}]}`, "400"},
		{"u1/prepare", `{"requests":[],"secret":1}`, "400"},
		{"u1/prepare", `{"namespace":"ns","name":"c","requests":[],"invalid":"it has parameters"}`, "409 it has parameters"},
	} {
		answer := ask(t, b.Socket, "POST /v1/claims/"+c.path, c.body)
		code, text, _ := strings.Cut(c.want, " ")
		if !strings.HasPrefix(answer, "HTTP/1.1 "+code) || !strings.Contains(answer, text) {
			t.Errorf("%s %.60s: %s", c.path, c.body, answer)
		}
	}
	for body, want := range map[string]string{`{"identity":"acts as a"}`: "HTTP/1.1 200", `{"secret":1}`: "HTTP/1.1 400"} {
		if answer := ask(t, b.Socket, "POST /v1/driver", body); !strings.HasPrefix(answer, want) {
			t.Errorf("%s: %s", body, answer)
		}
	}
	var got api.Status
	if err := b.Client.Get(t.Context(), "/v1/status", &got); err != nil {
		t.Fatal(err)
	}
	if r := got.Refused; len(r) != 3 || r[2].Resource != "claim ns/c" || r[2].Call != "prepare" || r[2].Reason != "it has parameters" {
		t.Errorf("the refused claims are %+v", r)
	}
	if got.Driver.Identity != "acts as a" {
		t.Errorf("the driver's state is %+v", got.Driver)
	}
}

// ask sends a request and returns the answer.
func ask(t *testing.T, socket, request, body string) string {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return exchange(t, c, request, body)
}

func exchange(t *testing.T, c io.ReadWriter, request, body string) string {
	t.Helper()
	fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", request, len(body), body)
	answer, err := io.ReadAll(c)
	if err != nil {
		t.Error(err)
	}
	return string(answer)
}

// serveClaims serves the socket for claims until the test calls stop.
func serveClaims(t *testing.T, b *bench) (socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(b.dir, "claims.sock")
	l, err := control.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.server.ServeClaims(ctx, l) }()
	return socket, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestClaimsDuringStart checks that a claim waits for the first snapshot, and that metalplugd closes the connection without an answer
// if it stops before.
func TestClaimsDuringStart(t *testing.T) {
	starting := inventory.New(inventory.Options{}) // does not run, so it has no snapshot
	b := start(t, machine(), claims, func(o *control.Options) { o.Inventory = starting })
	socket, stop := serveClaims(t, b)
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "POST /v1/claims/u1/unprepare HTTP/1.1\r\nHost: x\r\n\r\n")
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("before the first snapshot, the read ends with %v", err)
	}
	_ = c.SetReadDeadline(time.Time{})
	stop()
	if answer, _ := io.ReadAll(c); len(answer) > 0 {
		t.Errorf("the answer of a server that stops is %s", answer)
	}
}

// TestManyClaims checks that 110 pods, as many as a kubelet runs by default, can wait for their claims at the same time.
func TestManyClaims(t *testing.T) {
	const pods = 110
	waiting, all := make(chan struct{}, pods), make(chan struct{})
	b := start(t, machine(), claims, func(o *control.Options) {
		o.Unprepare = func(ctx context.Context, _ string) error {
			waiting <- struct{}{}
			select {
			case <-all:
			case <-ctx.Done():
			}
			return nil
		}
	})
	socket, stop := serveClaims(t, b)
	defer stop()
	var asking sync.WaitGroup
	for i := range pods {
		asking.Go(func() {
			c, err := net.Dial("unix", socket)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if answer := exchange(t, c, fmt.Sprintf("POST /v1/claims/u%d/unprepare", i), ""); !strings.HasPrefix(answer, "HTTP/1.1 200") {
				t.Errorf("claim %d: %q", i, answer)
			}
		})
	}
	late := time.After(30 * time.Second)
	for n := range pods {
		select {
		case <-waiting:
		case <-late:
			t.Fatalf("only %d of %d claims wait", n, pods)
		}
	}
	close(all)
	asking.Wait()
}

// TestOnlyRootMayChange checks that a user with access to the control socket can only read. A user with access to the socket for
// claims can also prepare claims.
func TestOnlyRootMayChange(t *testing.T) {
	b := start(t, machine(), claims)
	socket, stop := serveClaims(t, b)
	defer stop()
	b.admitAll(b.Socket, socket)
	for _, c := range []struct{ socket, request, want string }{
		{socket, "POST /v1/claims/u1/unprepare", "200"},
		{socket, "GET /v1/devices", "200"},
		{socket, "POST /v1/devices/" + alpha + "/cordon", "404"},
		{b.Socket, "GET /v1/status", "200"},
		{b.Socket, "POST /v1/claims/u1/unprepare", "403"},
		{b.Socket, "POST /v1/claims/u1/prepare", "403"},
		{b.Socket, "POST /v1/devices/" + alpha + "/cordon", "403"},
		{b.Socket, "POST /v1/devices/" + alpha + "/uncordon", "403"},
		{b.Socket, "POST /v1/devices/" + alpha + "/reset", "403"},
		{b.Socket, "POST /v1/devices/" + alpha + "/adopt", "403"},
	} {
		if answer := exchange(t, asNobody(t, c.socket), c.request, ""); !strings.HasPrefix(answer, "HTTP/1.1 "+c.want) {
			t.Errorf("%s at %s: %s", c.request, filepath.Base(c.socket), answer)
		}
	}
}
