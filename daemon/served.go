// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/metalplug/metalplug/daemon/control"
)

// served is the control socket as it is served. It is for one goroutine.
type served struct {
	*daemon
	path      string
	file      fs.FileInfo // as it was made; nil: it was not there
	listener  net.Listener
	stop      func()        // nil: it is not served
	ended     chan struct{} // closed when nobody is served any more
	before    bool          // it was served, and is to be again
	complaint string        // why it is not; empty: it is
}

// there tells whether it is served where clients look for it.
func (s *served) there() bool {
	if s.stop == nil {
		return false
	}
	select {
	case <-s.ended:
		return false
	default:
	}
	now, err := os.Lstat(s.path)
	return err == nil && s.file != nil && os.SameFile(now, s.file) && now.ModTime().Equal(s.file.ModTime())
}

// serve serves it unless it is there, and tells whether it is there again. That it cannot be served is logged.
func (s *served) serve(ctx context.Context) (again bool) {
	if s.there() {
		return false
	}
	s.end()
	l, err := s.listen()
	if err != nil {
		if s.complaint != err.Error() {
			s.Log.Error("control socket not served", "err", err)
		}
		s.complaint = err.Error()
		return false
	}
	again, s.before, s.complaint = s.before, true, ""
	s.path, s.listener = l.Addr().String(), l
	s.file, _ = os.Lstat(s.path)                                 // one that was passed on may be gone by now
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx)) // it is ended by end alone
	ended := make(chan struct{})
	s.ended = ended
	go func() {
		defer close(ended)
		s.unserved("control socket not served", s.control.Serve(ctx, l))
	}()
	return again
}

// listen returns the socket that the service manager passes on, which it does once, or makes it.
func (s *served) listen() (net.Listener, error) {
	if !s.before {
		return s.controlListener()
	}
	return control.Listen(s.path)
}

// end ends what is served. What is there in the place of our socket by now is not ours to remove.
func (s *served) end() {
	if s.stop == nil {
		return
	}
	if l, ok := s.listener.(*net.UnixListener); ok && !s.there() {
		l.SetUnlinkOnClose(false)
	}
	s.stop()
	<-s.ended
	s.stop = nil
}

// String tells where it is, and who is shut out: in the sandbox of the unit nothing can be given to the group.
func (s *served) String() string {
	if s.Sockets["control"] != nil && s.file != nil && s.file.Mode().Perm() == 0o600 {
		return s.path + " (for uid 0 alone until systemctl stop metalplugd && systemctl start metalplugd)"
	}
	return s.path
}

// serveMetrics serves the socket of the metrics, where the service manager passes one on.
func (d *daemon) serveMetrics(ctx context.Context, ready func()) error {
	ready()
	if f := d.Sockets["metrics"]; f != nil {
		l, err := net.FileListener(f)
		if err == nil {
			err = d.control.ServeMetrics(ctx, l)
		}
		d.unserved("metrics not served", err)
	}
	<-ctx.Done()
	return nil
}

// unserved logs why a socket is not served.
func (d *daemon) unserved(message string, err error) {
	if err != nil {
		d.Log.Error(message, "err", err)
	}
}

// controlListener returns the socket that the service manager passes on, or makes it.
func (d *daemon) controlListener() (net.Listener, error) {
	f := d.Sockets["control"]
	if f == nil {
		return control.Listen(filepath.Join(d.Config.Paths.Run, controlSocket))
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("take the control socket: %w", err)
	}
	return l, nil
}
