// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// peerPause is the least time between two connections to a plugin, and peerLastPause the most.
	peerPause     = 10 * time.Millisecond
	peerLastPause = time.Second
	// settling is how long a new plugin may take until the kubelet was found twice to count its devices.
	settling = 3 * time.Second
	// peerPatience is how long a new socket may refuse connections: a plugin binds it before it listens.
	peerPatience = 30 * time.Second
)

// Peers knows which other plugins in the kubelet's directory are alive. A plugin that is killed leaves its socket behind, and
// no inotify event says that nobody listens there any more. So Peers holds a connection to each, over which it calls nothing:
// the kernel ends it with the process (unix_release_sock, net/unix/af_unix.c). Its methods are safe for concurrent use.
type Peers struct {
	Dir     string
	Changed chan struct{} // one slot: a plugin has ended

	mu       sync.Mutex
	ctx      context.Context // of all connections; nil until Run
	known    map[Peer]*connection
	departed uint64
	newest   time.Time // when the last socket was found that was not there at the start
}

// Peer is a socket of another plugin. One that is made again at the same path is another Peer.
type Peer struct {
	path          string
	device, inode uint64
}

// connection is what is known of a peer. It is guarded by Peers.mu.
type connection struct {
	seen time.Time // when its socket was found
	live bool      // it has accepted a connection, and has not ended since
	stop context.CancelFunc
}

// Run holds connections until ctx ends.
func (p *Peers) Run(ctx context.Context, started func()) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	p.mu.Lock()
	p.ctx, p.known = ctx, make(map[Peer]*connection)
	p.mu.Unlock()
	p.Live()
	p.mu.Lock()
	p.newest = time.Time{}
	p.mu.Unlock()
	started()
	<-ctx.Done()
	return nil
}

// Live lists the directory and returns the plugins that are alive. It does not block: a connection to a unix socket is made at
// once or refused. A nil Peers has none.
func (p *Peers) Live() map[Peer]bool {
	if p == nil {
		return nil
	}
	there := p.list()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil {
		return nil
	}
	for peer, c := range p.known {
		if !there[peer] {
			p.end(peer, c)
		}
	}
	live := make(map[Peer]bool)
	for peer := range there {
		c := p.known[peer]
		if c == nil {
			c = p.begin(peer)
			p.newest = c.seen
		}
		if c.live {
			live[peer] = true
		}
	}
	return live
}

// LiveSince returns the plugins that are alive and whose sockets were found after t; all that are alive if there is none.
func (p *Peers) LiveSince(t time.Time) map[Peer]bool {
	live := p.Live()
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	newer := make(map[Peer]bool)
	for peer := range live {
		if c := p.known[peer]; c != nil && c.seen.After(t) {
			newer[peer] = true
		}
	}
	if len(newer) == 0 {
		return live
	}
	return newer
}

// Settling returns how long a list is to wait: since a plugin has come that may register our resource, what the kubelet counts
// shows that only until it gets a list of ours.
func (p *Peers) Settling() time.Duration {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Until(p.newest.Add(settling))
}

// Departed returns how many plugins have ended so far.
func (p *Peers) Departed() uint64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.departed
}

// list returns the sockets of other plugins that are in the directory.
func (p *Peers) list() map[Peer]bool {
	entries, _ := os.ReadDir(p.Dir) // a directory that is missing has none
	all := make(map[Peer]bool)
	for _, e := range entries {
		if e.Type() != os.ModeSocket || isSocketName(e.Name()) {
			continue
		}
		path := filepath.Join(p.Dir, e.Name())
		if at := socketIdentity(path); at != (identity{}) {
			all[Peer{path, at.device, at.inode}] = true
		}
	}
	return all
}

// begin connects to a peer for the first time. The caller holds mu.
func (p *Peers) begin(peer Peer) *connection {
	ctx, stop := context.WithCancel(p.ctx)
	c := &connection{seen: time.Now(), stop: stop}
	p.known[peer] = c
	conn, err := dialPeer(peer)
	c.live = err == nil || mayBeAlive(err)
	go p.hold(ctx, peer, c, conn, err)
	return c
}

// end notes that a peer is gone. The caller holds mu.
func (p *Peers) end(peer Peer, c *connection) {
	c.stop()
	if p.known[peer] == c {
		delete(p.known, peer)
	}
	if !c.live {
		return
	}
	c.live = false
	p.departed++
	select {
	case p.Changed <- struct{}{}:
	default:
	}
}

// hold keeps a connection to a peer until that ends, or ctx does.
func (p *Peers) hold(ctx context.Context, peer Peer, c *connection, conn net.Conn, err error) {
	began, pause := time.Now(), time.Duration(0)
	for {
		switch {
		case err == nil:
			p.lives(c)
			made := time.Now()
			wait(ctx, conn)
			if pause = max(peerPause, min(2*pause, peerLastPause)); time.Since(made) > peerLastPause {
				pause = 0
			}
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM): // its file alone shows whether it is there
			<-ctx.Done()
			return
		case mayBeAlive(err):
			pause = peerLastPause
		case p.lived(c) || time.Since(began) > peerPatience:
			p.mu.Lock()
			defer p.mu.Unlock()
			if ctx.Err() == nil {
				p.ended(c)
			}
			return
		default:
			pause = max(peerPause, min(2*pause, peerLastPause))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		conn, err = dialPeer(peer)
	}
}

// ended notes that nobody listens at a peer's socket any more, which stays known as long as it is there. The caller holds mu.
func (p *Peers) ended(c *connection) {
	known := maps.Clone(p.known)
	for peer, other := range known {
		if other == c {
			p.end(peer, c)
			p.known[peer] = c
		}
	}
}

func (p *Peers) lives(c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.live = true
}

func (p *Peers) lived(c *connection) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.live
}

// dialPeer connects to a peer.
func dialPeer(peer Peer) (net.Conn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: peer.path, Net: "unix"})
}

// mayBeAlive reports whether a connection that failed says nothing of who listens: the backlog is full (connect(2), EAGAIN),
// or we may not connect.
func mayBeAlive(err error) bool {
	return err != nil && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT)
}

// wait waits until the other end closes a connection, or ctx ends. It speaks as far as gRPC's greeting: a server that waits for
// that does not stop before its time is up (grpc-go: two minutes).
func wait(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	once := make(chan net.Conn, 1)
	once <- conn
	client, err := grpc.NewClient("passthrough:///peer", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), grpc.WithIdleTimeout(0),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-once:
				return c, nil
			default:
				return nil, net.ErrClosed
			}
		}))
	if err != nil {
		return
	}
	defer client.Close()
	client.Connect()
	for state := client.GetState(); client.WaitForStateChange(ctx, state); {
		if state = client.GetState(); state != connectivity.Connecting && state != connectivity.Ready {
			return
		}
	}
}
