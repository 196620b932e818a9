// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/inventory"
)

// replaced deals with a new kubelet.sock while the stream is open. If the same process listens there, the socket was
// only made anew or relabelled. If it is another, the old kubelet lingers: its stream is ended, and the end registers.
func (e *Endpoint) replaced(kubelet identity) time.Duration {
	conn, err := e.dial()
	if err != nil {
		return e.unanswered(err)
	}
	defer conn.Close()
	peer, err := peerOf(conn)
	if err != nil {
		return e.again(err)
	}
	if e.streams.openFrom(peer.Pid) {
		e.streams.expect(peer.Pid)
		e.registered = kubelet
		e.setRegistered(true)
		return 0
	}
	e.streams.end()
	e.registered = identity{}
	return settlePause
}

// afterStream sets the pause that the kubelet needs after a stream of its own has ended, or after it was told of us and
// opened none. The pauses grow only as long as no stream lives.
func (e *Endpoint) afterStream(kubelet identity) {
	if kubelet != e.registered {
		return
	}
	message := "stream ended"
	ended, lived := e.streams.last()
	if ended.Before(e.since) {
		message, ended, lived = "stream not opened", time.Now(), 0
	}
	if lived > lastPause {
		e.pause = 0
	}
	e.registered = identity{}
	e.longerPause()
	e.notBefore = ended.Add(e.pause/2 + rand.N(e.pause))
	e.setRegistered(false)
	e.Log.Info(message, "endpoint", e.name)
}

// register registers our socket with the kubelet.
func (e *Endpoint) register(ctx context.Context, kubelet identity) time.Duration {
	conn, err := e.dial()
	if err != nil {
		return e.unanswered(err)
	}
	defer conn.Close()
	if e.unheard {
		if err := e.beHeard(ctx, conn); err != nil {
			return e.again(err)
		}
		return 2 * settlePause
	}
	// The kubelet empties its directory before it makes kubelet.sock: now that it answers, look at our socket again.
	if err := e.ensureSocket(); err != nil {
		return e.again(err)
	}
	peer, err := peerOf(conn)
	if err != nil {
		return e.again(err)
	}
	e.streams.expect(peer.Pid)
	e.since = time.Now()
	e.rivalry.suspect, e.rivalry.again = ours, 0
	e.streams.mute(false)
	err = e.callRegister(ctx, conn)
	e.Tally.registered(e.Resource.Name, err)
	if err != nil {
		return e.again(fmt.Errorf("register %s with the kubelet: %w", e.Resource.Name, err))
	}
	if e.known { // and may deal with the end of that after this, in spite of all pauses
		e.rivalry.late, e.rivalry.again, e.rivalry.asked = true, lateInterval, time.Now()
	}
	e.registered, e.known = kubelet, true
	e.rivalry.given, _ = givenByOthers(e.Dir, e.Resource.Name, e.Resource.Variable)
	e.setRegistered(true)
	e.Log.Log(ctx, inventory.LevelNotice, "endpoint registered", "endpoint", e.name, "duration", time.Since(e.firstSeen))
	return streamLimit
}

// beHeard makes sure that the kubelet has heard of the end of the endpoint before this one: it answers, so that it has got
// that too, and is given a while to deal with it. If it dealt with it after our registration, it would end us: it would
// give our devices to nobody while our stream is open, of which nobody tells us (before 1.37).
func (e *Endpoint) beHeard(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, registerLimit)
	defer cancel()
	client, err := dialed(conn)
	if err != nil {
		return err
	}
	defer client.Close()
	err = client.Invoke(ctx, "/v1beta1.Registration/None", &pluginapi.Empty{}, &pluginapi.Empty{})
	switch status.Code(err) { // Unimplemented, mostly, but any other answer is one too
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return fmt.Errorf("wait for the kubelet: %w", said(err, registerLimit))
	}
	e.unheard, e.notBefore = false, time.Now().Add(2*settlePause)
	return nil
}

// beHeardEarly does so before there is anything to register, if the kubelet is there and answers.
func (e *Endpoint) beHeardEarly(ctx context.Context) {
	if !e.unheard || e.look() == (identity{}) || time.Now().Before(e.notBefore) {
		return
	}
	conn, err := e.dial()
	if err == nil {
		defer conn.Close()
		err = e.beHeard(ctx, conn)
	}
	if err != nil {
		e.longerPause()
		e.notBefore = time.Now().Add(e.pause)
	}
}

// dialed returns a client of the kubelet over conn.
func dialed(conn net.Conn) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///kubelet", grpc.WithTransportCredentials(peerCredentials{}),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }))
}

// callRegister calls Register over conn.
func (e *Endpoint) callRegister(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, registerLimit)
	defer cancel()
	client, err := dialed(conn)
	if err != nil {
		return err
	}
	defer client.Close()
	answered := make(chan error, 1)
	go func() {
		_, err := pluginapi.NewRegistrationClient(client).Register(ctx, &pluginapi.RegisterRequest{
			Version:      pluginapi.Version,
			Endpoint:     e.name,
			ResourceName: e.Resource.Name,
			Options:      options(),
		})
		answered <- err
	}()
	if err := e.reachable(answered); err != nil {
		return said(err, registerLimit)
	}
	return nil
}

// reachable makes our socket again, should it go, until the kubelet has answered Register: without it the kubelet does not
// answer but dials us until the call ends (client.go, dial: 10 s).
func (e *Endpoint) reachable(answered <-chan error) error {
	tick := time.NewTicker(settlePause)
	defer tick.Stop()
	for {
		select {
		case err := <-answered:
			return err
		case <-tick.C:
		}
		if err := e.ensureSocket(); err != nil {
			e.complain("endpoint not listening", err)
		}
	}
}

// checkOwn connects to our own socket as the kubelet will. A registration that fails because the kubelet does not reach
// us would leave its books in disorder.
func (e *Endpoint) checkOwn() error {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: e.path(), Net: "unix"})
	if err != nil {
		e.drop()
		err = fmt.Errorf("connect to own socket %s: %w", e.path(), plainCause(err))
		if !errors.Is(err, unix.ENOENT) { // which the kubelet's sweep may do at any time
			e.unreachable, e.unreached = err, time.Now()
		}
		return err
	}
	c.Close()
	return nil
}

func (e *Endpoint) dial() (*net.UnixConn, error) {
	path := filepath.Join(e.Dir, kubeletSocket)
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, plainCause(err))
	}
	return c, nil
}

// unanswered notes that no connection to the kubelet was to be had and returns the time to the next attempt: next to
// none where the kubelet is about to listen.
func (e *Endpoint) unanswered(err error) time.Duration {
	if time.Since(e.firstSeen) < eager && (errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT)) {
		e.notBefore = time.Now().Add(eagerPause)
		return eagerPause
	}
	return e.again(err)
}

// longerPause makes the pause twice as long as the last one.
func (e *Endpoint) longerPause() { e.pause = min(max(settlePause, 2*e.pause), lastPause) }

// again notes that an attempt has gone wrong and returns the time to the next one.
func (e *Endpoint) again(err error) time.Duration {
	e.complain("endpoint not registered", err)
	e.longerPause()
	e.notBefore = time.Now().Add(e.pause)
	return e.pause
}
