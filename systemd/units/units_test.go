// SPDX-License-Identifier: Apache-2.0

package units

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

const (
	managerPath = "/org/freedesktop/systemd1"
	managerName = "org.freedesktop.systemd1.Manager"
	unitsPath   = managerPath + "/unit"
)

// peer simulates the D-Bus interface of systemd over pipes, as far as Run needs it.
type peer struct {
	t *testing.T

	mu       sync.Mutex
	conns    []*dbus.Conn
	asked    []string
	result   string         // result of the job, or empty if the job does not end
	refuse   *dbus.Error    // the answer to RestartUnit
	stands   chan struct{}  // RestartUnit is answered when this is closed, or at once if this is nil
	service  map[string]any // properties of the unit
	dropping bool           // closes a connection instead of sending a result
}

// pipe returns two ends of a stream inside this process. In the bubble of a test, a goroutine that waits for such a stream
// counts as blocked.
func pipe(t *testing.T) (a, b net.Conn) {
	t.Helper()
	a, b = net.Pipe()
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

// welcome implements the server side of the authentication (D-Bus specification, "Authentication Protocol").
func welcome(c net.Conn) *bufio.Reader {
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		switch line = strings.TrimLeft(line, "\x00"); {
		case err != nil, strings.HasPrefix(line, "BEGIN"):
			return in
		case strings.HasPrefix(line, "AUTH EXTERNAL"):
			fmt.Fprint(c, "OK 0123456789abcdef0123456789abcdef\r\n")
		case strings.HasPrefix(line, "NEGOTIATE_UNIX_FD"):
			fmt.Fprint(c, "ERROR\r\n")
		default:
			fmt.Fprint(c, "REJECTED EXTERNAL\r\n")
		}
	}
}

// dial returns a connection to another godbus connection, on which the peer answers. godbus has no server side, so a proxy
// between the two acts as the server for both.
func (p *peer) dial() (*dbus.Conn, error) {
	client, left := pipe(p.t)
	server, right := pipe(p.t)
	fromLeft, fromRight := make(chan io.Reader, 1), make(chan io.Reader, 1)
	go func() { fromLeft <- welcome(left) }()
	go func() { fromRight <- welcome(right) }()
	open := func(c net.Conn) (*dbus.Conn, error) {
		conn, err := dbus.NewConn(c)
		if err == nil {
			err = conn.Auth([]dbus.Auth{dbus.AuthExternal("0")})
		}
		return conn, err
	}
	own, err := open(server)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(own.Export(p, managerPath, managerName), own.ExportSubtree(p, unitsPath, "org.freedesktop.DBus.Properties")); err != nil {
		return nil, err
	}
	conn, err := open(client)
	if err != nil {
		return nil, err
	}
	relay := func(to net.Conn, from io.Reader) {
		_, _ = io.Copy(to, from)
		to.Close()
	}
	go relay(right, <-fromLeft)
	go relay(left, <-fromRight)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, own)
	return conn, nil
}

// run runs an instance of a template unit with the peer as the service manager.
func (p *peer) run(ctx context.Context, template, instance string) error {
	c, err := systemd.NewConnection(p.dial)
	if err != nil {
		return err
	}
	defer c.Close()
	return run(ctx, c, template, instance)
}

func (p *peer) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, fmt.Sprintf(format, args...))
}

// requests returns the requests that the peer has received.
func (p *peer) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked)
}

// ResetFailedUnit is a method of the manager.
func (p *peer) ResetFailedUnit(name string) *dbus.Error {
	p.note("reset %s", name)
	return dbus.MakeFailedError(errors.New("not loaded"))
}

// StopUnit is a method of the manager.
func (p *peer) StopUnit(name, mode string) (dbus.ObjectPath, *dbus.Error) {
	p.note("stop %s %s", name, mode)
	return managerPath + "/job/2", nil
}

// RestartUnit is a method of the manager.
func (p *peer) RestartUnit(name, mode string) (dbus.ObjectPath, *dbus.Error) {
	p.note("restart %s %s", name, mode)
	const job = dbus.ObjectPath(managerPath + "/job/1")
	if p.refuse != nil {
		return "", p.refuse
	}
	if p.stands != nil {
		<-p.stands
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dropping {
		p.conns[1].Close() // this connection is for signals, while the answer uses the other one
	}
	for _, c := range p.conns {
		if p.result != "" {
			if err := c.Emit(managerPath, managerName+".JobRemoved", uint32(1), job, name, p.result); err != nil {
				p.t.Error(err)
			}
		}
	}
	return job, nil
}

// GetAll is a method of each unit.
func (p *peer) GetAll(of string) (map[string]dbus.Variant, *dbus.Error) {
	p.note("properties of %s", of)
	all := make(map[string]dbus.Variant)
	for name, value := range p.service {
		all[name] = dbus.MakeVariant(value)
	}
	return all, nil
}

func TestRun(t *testing.T) {
	const name = `fpga-start@fpga\x2d1.service`
	reset, restart := "reset "+name, "restart "+name+" replace"
	properties := "properties of org.freedesktop.systemd1.Service"
	for _, c := range []struct {
		name  string
		peer  *peer
		want  string // empty if the run succeeds
		asked []string
	}{
		{"it succeeds", &peer{result: "done"}, "", []string{reset, restart}},
		{
			"a command fails",
			&peer{result: "failed", service: map[string]any{"Result": "exit-code", "ExecMainStatus": int32(3), "StatusText": "no bitstream"}},
			"run " + name + ": failed: exit-code, status 3: no bitstream; see: journalctl -u '" + name + "'",
			[]string{reset, restart, properties},
		},
		{
			"what it needs fails", &peer{result: "dependency", service: map[string]any{"Result": "success", "ExecMainStatus": int32(0)}},
			"run " + name + ": the start job ended with the result dependency; see: journalctl -u '" + name + "'",
			[]string{reset, restart, properties},
		},
		{
			"there is none", &peer{refuse: dbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{"Unit " + name + " not found."})},
			"run " + name + ": Unit " + name + " not found.",
			[]string{reset, restart},
		},
		{"systemd goes away", &peer{dropping: true}, "run " + name + ": systemd has closed the connection", []string{reset, restart}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.peer.t = t
			got := ""
			if err := c.peer.run(t.Context(), "fpga-start@.service", "fpga-1"); err != nil {
				got = err.Error()
			}
			if asked := c.peer.requests(); got != c.want || !slices.Equal(asked, c.asked) {
				t.Errorf("%q after %q,\nwant %q after %q", got, asked, c.want, c.asked)
			}
		})
	}
}

// TestTimeIsUp uses the clock of a bubble. So the deadline passes after the request on fast and on slow machines.
func TestTimeIsUp(t *testing.T) {
	for name, answered := range map[string]bool{"for the unit": true, "for systemd": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &peer{t: t}
				if !answered {
					p.stands = make(chan struct{})
					defer close(p.stands)
				}
				ctx, cancel := context.WithTimeout(t.Context(), jobPollInterval/2)
				defer cancel()
				if err := p.run(ctx, "x@.service", "1"); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
				want := []string{"reset x@1.service", "restart x@1.service replace", "stop x@1.service replace"}
				if asked := p.requests(); !slices.Equal(asked, want) {
					t.Errorf("%q, want %q", asked, want)
				}
			})
		})
	}
}
