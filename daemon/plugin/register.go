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
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/metalplug/metalplug/daemon/inventory"
	"github.com/metalplug/metalplug/daemon/kubelet"
	"github.com/metalplug/metalplug/internal/clients"
	"github.com/metalplug/metalplug/internal/fsutil"
)

// registration contains what an endpoint knows about the kubelet. Only the goroutine of Run uses it.
type registration struct {
	checked bool      // updateKubelet has been called
	seen    identity  // the current kubelet.sock
	since   time.Time // when kubelet.sock was first seen
	known   bool      // whether this kubelet may have known an earlier endpoint of the resource
	// kubelet.sock at the last registration, or zero before the first registration and after the stream has ended
	registered identity
	at         time.Time     // time of that registration
	pause      time.Duration // delay before the next attempt, or 0 if no attempt has failed
	notBefore  time.Time     // earliest time of the next attempt
	settling   time.Time     // time of the first query before the next registration, or zero
}

// updateKubelet records the current kubelet.sock. If the socket is older than the endpoint, the kubelet may have known an earlier
// endpoint, and may still be processing its end. The parameter "before" is the time when that endpoint ended, or zero if it belonged
// to another process.
func (r *registration) updateKubelet(kubelet identity, before time.Time) {
	if r.checked && kubelet == r.seen {
		return
	}
	r.known, r.checked = !r.checked, true
	r.seen, r.since, r.pause, r.notBefore, r.settling = kubelet, time.Now(), 0, time.Time{}, time.Time{}
	if r.known {
		r.notBefore = before.Add(settlePause)
	}
}

// backOff doubles the pause and returns it.
func (r *registration) backOff() time.Duration {
	r.pause = min(max(settlePause, 2*r.pause), lastPause)
	r.notBefore = time.Now().Add(r.pause)
	return r.pause
}

// checkNewSocket handles a new kubelet.sock that appears while the stream is open. If the process that listens on the new
// socket is still the same kubelet, the socket was only recreated or relabelled. If another process listens on the new socket,
// the old kubelet is still running, so checkNewSocket ends its stream, and Run then registers with the new kubelet.
func (e *Endpoint) checkNewSocket(kubelet identity) time.Duration {
	conn, err := e.dial()
	if err != nil {
		return e.retryConnect(err)
	}
	defer conn.Close()
	peer, err := clients.Peer(conn)
	if err != nil {
		return e.retryLater(err)
	}
	// The PID is 0 if the process is in a PID namespace that metalplugd cannot see.
	if c := e.streams.client(); c != nil && c.Pid == peer.Pid {
		e.kubelet.registered, e.kubelet.known = kubelet, true
		e.setRegistered(true)
		return 0
	}
	e.streams.closeAll()
	e.kubelet.registered = identity{}
	return settlePause
}

// afterStream schedules the next registration after the kubelet's stream has ended, or if the kubelet has opened no stream. The
// pause before the registration grows until the kubelet keeps a stream open for longer than lastPause.
func (e *Endpoint) afterStream(kubelet identity) {
	k := &e.kubelet
	if kubelet != k.registered {
		return
	}
	message := "stream ended"
	opened, ended, lived := e.streams.lastStream()
	if !opened {
		message, ended, lived = "stream not opened", time.Now(), 0
	}
	if lived > lastPause {
		k.pause = 0
	}
	k.registered = identity{}
	k.backOff()
	k.notBefore = ended.Add(k.pause/2 + rand.N(k.pause))
	e.setRegistered(false)
	e.Log.Info(message, "endpoint", filepath.Base(e.socket.path))
}

// register registers the endpoint's socket with the kubelet.
func (e *Endpoint) register(ctx context.Context, kubelet identity) time.Duration {
	conn, err := e.dial()
	if err != nil {
		return e.retryConnect(err)
	}
	defer conn.Close()
	if socketIdentity(filepath.Join(e.Dir, kubeletSocket)) != kubelet { // the connection may be to a kubelet that has started since
		return connectInterval
	}
	// The kubelet empties its directory before it creates kubelet.sock, so it may have removed the endpoint's socket.
	// Therefore the socket is checked again when the kubelet answers.
	if err := e.ensureSocket(); err != nil {
		return e.retryLater(err)
	}
	e.streams.expect()
	e.streams.setSilent(false)
	e.kubelet.at = time.Now()
	err = e.callRegister(ctx, conn)
	e.Metrics.Registered(e.Resource.Name, err)
	if err != nil {
		return e.retryLater(fmt.Errorf("register %s with the kubelet: %w", e.Resource.Name, err))
	}
	e.conflict.forget()
	e.kubelet.registered, e.kubelet.known, e.kubelet.settling = kubelet, true, time.Time{}
	e.setRegistered(true)
	e.Log.Log(ctx, inventory.LevelNotice, "endpoint registered", "endpoint", filepath.Base(e.socket.path), "duration", time.Since(e.kubelet.since))
	return streamLimit
}

// callRegister calls the kubelet's Register method over the connection.
func (e *Endpoint) callRegister(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, registerLimit)
	defer cancel()
	client, err := grpc.NewClient("passthrough:///kubelet", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return conn, nil }))
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = pluginapi.NewRegistrationClient(client).Register(ctx, &pluginapi.RegisterRequest{
		Version:      pluginapi.Version,
		Endpoint:     filepath.Base(e.socket.path),
		ResourceName: e.Resource.Name,
		Options:      options(),
	})
	return kubelet.CleanError(err, registerLimit)
}

func (e *Endpoint) dial() (*net.UnixConn, error) {
	path := filepath.Join(e.Dir, kubeletSocket)
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, fsutil.Cause(err))
	}
	return c, nil
}

// retryConnect handles a failed connection to the kubelet, and returns the delay before the next attempt. The delay is very short
// if the kubelet is about to listen.
func (e *Endpoint) retryConnect(err error) time.Duration {
	if time.Since(e.kubelet.since) < connectTimeout && (errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT)) {
		e.kubelet.notBefore = time.Now().Add(connectInterval)
		return connectInterval
	}
	return e.retryLater(err)
}

// retryLater records that an attempt has failed, and returns the delay before the next one.
func (e *Endpoint) retryLater(err error) time.Duration {
	e.complain("endpoint not registered", err)
	return e.kubelet.backOff()
}
