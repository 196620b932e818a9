// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
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
	// peerPatience is how long a new socket may refuse connections: a plugin binds it before it listens. If it does so for
	// peerDoubt, its plugin may have ended before it was seen.
	peerPatience = 30 * time.Second
	peerDoubt    = time.Second
)

// Peers knows which other plugins in the kubelet's directory are alive. A plugin that is killed leaves its socket behind, and
// no inotify event reports that its process is gone. So Peers holds a connection to each, over which it calls nothing: the
// kernel ends it with the process (unix_release_sock, net/unix/af_unix.c). Its methods are safe for concurrent use, and a nil
// Peers knows none.
type Peers struct {
	Dir  string
	Hint func() // called after each event; must not block

	mu     sync.Mutex
	ctx    context.Context // of all connections; nil until Run
	known  map[socketFile]*neighbor
	last   uint64 // number of the newest
	events uint64
	ended  uint64
}

// socketFile is a socket. Another file at the same path is another one.
type socketFile struct {
	path          string
	device, inode uint64
}

// neighbor is another plugin. It is guarded by Peers.mu.
type neighbor struct {
	number uint64 // newer plugins have higher ones
	found  time.Time
	pid    int32 // of the process that accepted the last connection
	live   bool  // it has accepted a connection, and has not ended since
	over   bool  // it has ended
	doubt  bool  // it may have ended before it was seen, which was an event
	stop   context.CancelFunc
}

// Run holds connections until ctx ends.
func (p *Peers) Run(ctx context.Context, started func()) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	p.mu.Lock()
	p.ctx, p.known = ctx, make(map[socketFile]*neighbor)
	p.mu.Unlock()
	p.Live()
	started()
	<-ctx.Done()
	return nil
}

// Stir notes that a file of another plugin, or what the kubelet writes for each list, has come or gone. It is an event unless
// all other plugins have ended.
func (p *Peers) Stir() {
	p.Live()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.known {
		if !c.over {
			p.event()
			return
		}
	}
}

// Live lists the directory and returns the numbers of the plugins that are alive, the newest last. It does not block: a
// connection to a unix socket is made at once or refused.
func (p *Peers) Live() (live []uint64) {
	if p == nil {
		return nil
	}
	there := p.list()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil {
		return nil
	}
	for file, c := range p.known {
		if !there[file] {
			p.end(c)
			c.stop()
			delete(p.known, file)
		}
	}
	for file := range there {
		c := p.known[file]
		if c == nil || c.over { // another socket may have the inode of the last
			if c = p.begin(file); c == nil {
				continue
			}
		}
		if c.live {
			live = append(live, c.number)
		}
	}
	slices.Sort(live)
	return live
}

// Events returns how often a plugin has come or ended, or may have sent a list, so far.
func (p *Peers) Events() uint64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.events
}

// Ended returns how many plugins have ended so far.
func (p *Peers) Ended() uint64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// event notes an event. The caller holds mu.
func (p *Peers) event() {
	p.events++
	if p.Hint != nil {
		p.Hint()
	}
}

// list returns the sockets of other plugins that are in the directory.
func (p *Peers) list() map[socketFile]bool {
	entries, _ := os.ReadDir(p.Dir) // a directory that is missing has none
	all := make(map[socketFile]bool)
	for _, e := range entries {
		if e.Type() != os.ModeSocket || isSocketName(e.Name()) {
			continue
		}
		path := filepath.Join(p.Dir, e.Name())
		if at := socketIdentity(path); at != (identity{}) {
			all[socketFile{path, at.device, at.inode}] = true
		}
	}
	return all
}

// begin connects to a plugin for the first time. It returns nil if one that has ended is gone still. The caller holds mu.
func (p *Peers) begin(file socketFile) *neighbor {
	conn, err := dialPeer(file)
	if c := p.known[file]; c != nil {
		if refused(err) {
			return nil
		}
		c.stop()
	}
	ctx, stop := context.WithCancel(p.ctx)
	p.last++
	c := &neighbor{number: p.last, found: time.Now(), stop: stop}
	p.known[file] = c
	if !refused(err) {
		p.alive(c, conn)
	}
	go p.follow(ctx, file, c, conn, err)
	return c
}

// alive notes a connection to a plugin. Another process at the same socket is another plugin. The caller holds mu.
func (p *Peers) alive(c *neighbor, conn *net.UnixConn) {
	if conn != nil {
		if who, err := peerOf(conn); err == nil {
			if c.live && who.Pid != c.pid {
				p.end(c)
				c.over = false
				p.last++
				c.number = p.last
			}
			c.pid = who.Pid
		}
	}
	if !c.live {
		c.live = true
		p.event()
	}
}

// end notes that a plugin has ended. The caller holds mu.
func (p *Peers) end(c *neighbor) {
	if c.over = true; c.live {
		c.live = false
		p.ended++
		p.event()
	}
}

// follow keeps a connection to a plugin until that ends, or ctx does.
func (p *Peers) follow(ctx context.Context, file socketFile, c *neighbor, conn *net.UnixConn, err error) {
	for pause := peerPause; ; pause = min(2*pause, peerLastPause) {
		if err == nil {
			made := time.Now()
			linger(ctx, conn)
			if time.Since(made) > peerLastPause {
				pause = peerPause
			}
		}
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) { // its file alone shows whether it is there
			<-ctx.Done()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		conn, err = dialPeer(file)
		if over := p.dialled(ctx, c, conn, err); over {
			return
		}
	}
}

// dialled notes how a further connection went, and reports whether the plugin has ended.
func (p *Peers) dialled(ctx context.Context, c *neighbor, conn *net.UnixConn, err error) (over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		if conn != nil {
			conn.Close()
		}
		return true
	case !refused(err):
		p.alive(c, conn)
	case c.live || time.Since(c.found) > peerPatience:
		p.end(c)
	case !c.doubt && time.Since(c.found) > peerDoubt:
		c.doubt = true
		p.ended++
		p.event()
	}
	return c.over
}

func dialPeer(file socketFile) (*net.UnixConn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: file.path, Net: "unix"})
}

// refused reports whether a connection failed because no process listens. Other errors do not show that: the backlog is full
// (connect(2), EAGAIN), or we may not connect.
func refused(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT)
}

// linger waits until the other end closes a connection, or ctx ends. It speaks as far as gRPC's greeting: a server that waits
// for that does not stop before its time is up (grpc-go: two minutes).
func linger(ctx context.Context, conn net.Conn) {
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
