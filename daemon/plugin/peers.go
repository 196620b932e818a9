// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// peerPause is the least time between two connections to a plugin, and peerLastPause the most.
	peerPause     = 10 * time.Millisecond
	peerLastPause = time.Second
	// peerDoubt is how long a new socket may refuse connections until its plugin counts as ended, and peerPatience how
	// long to try. A plugin binds its socket before it listens.
	peerDoubt    = 100 * time.Millisecond
	peerPatience = 30 * time.Second
)

// Peers knows which other plugins in the kubelet's directory are alive. A plugin that is killed leaves its socket behind,
// and no inotify event reports that its process is gone. So Peers holds a connection to each, over which it calls
// nothing. The kernel ends the connection with the process (unix_release_sock, net/unix/af_unix.c). Its methods are safe
// for concurrent use. The zero value knows none.
type Peers struct {
	Dir  string
	Hint func() // called after each event. It must not block

	mu     sync.Mutex
	ctx    context.Context // of all connections, or nil until Run
	known  map[socketFile]*neighbor
	last   uint64 // number of the newest
	events uint64
	ended  uint64
}

// socketFile is a socket. Another file at the same path is another one.
type socketFile struct {
	path string
	identity
}

// neighbor is another plugin. It is guarded by Peers.mu.
type neighbor struct {
	number uint64 // newer plugins have higher ones
	live   bool   // it has not ended
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

// Stir notes that a file of another plugin, or what the kubelet writes for each list, has come or gone. It is an event if
// another plugin is alive.
func (p *Peers) Stir() {
	if len(p.Live()) > 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.event()
	}
}

// Live lists the directory and returns the numbers of the plugins that are alive, the newest last. It does not block.
func (p *Peers) Live() (live []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil {
		return nil
	}
	there := p.list()
	for file, n := range p.known {
		if !there[file] {
			p.set(n, false)
			n.stop()
			delete(p.known, file)
		}
	}
	for file := range there {
		n := p.known[file]
		if n == nil {
			ctx, stop := context.WithCancel(p.ctx)
			n = &neighbor{stop: stop}
			p.known[file] = n
			p.set(n, true)
			go p.follow(ctx, file, n)
		}
		if n.live {
			live = append(live, n.number)
		}
	}
	slices.Sort(live)
	return live
}

// Events returns how often a plugin has come or ended, or may have sent a list, so far.
func (p *Peers) Events() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.events
}

// Ended returns how many plugins have ended so far.
func (p *Peers) Ended() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// set notes that a plugin has come or ended. The caller holds mu.
func (p *Peers) set(n *neighbor, live bool) {
	switch {
	case live == n.live:
		return
	case live:
		p.last++
		n.number = p.last
	default:
		p.ended++
	}
	n.live = live
	p.event()
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
		path := filepath.Join(p.Dir, e.Name())
		if at := socketIdentity(path); at != (identity{}) && !isSocketName(e.Name()) {
			all[socketFile{path, at}] = true
		}
	}
	return all
}

// follow keeps a connection to a plugin until no process listens at its socket, or ctx ends.
func (p *Peers) follow(ctx context.Context, file socketFile, n *neighbor) {
	limit, pause := time.Now().Add(peerDoubt), peerPause
	for over := time.Now().Add(peerPatience); ; pause = min(2*pause, peerLastPause) {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: file.path, Net: "unix"})
		refused := errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT)
		p.mu.Lock()
		if ctx.Err() == nil && (!refused || time.Now().After(limit)) {
			p.set(n, !refused)
		}
		p.mu.Unlock()
		switch {
		case err == nil:
			limit = time.Now()
			linger(ctx, conn)
			if over = time.Now(); over.Sub(limit) > peerLastPause {
				pause = peerPause
			}
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM): // its file alone shows whether it is there
			<-ctx.Done()
		case refused && time.Now().After(limit) && time.Now().After(over):
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// greeting is the first message of an HTTP/2 client, with the preface and empty settings (RFC 9113, 3.4 and 6.5).
const greeting = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// linger waits until the other end closes a connection or is about to (GOAWAY, RFC 9113, 6.8), or ctx ends. It sends the
// greeting, because a server that waits for that does not stop before a timeout (two minutes in grpc-go).
func linger(ctx context.Context, conn net.Conn) {
	const headerSize, goAway = 9, 7
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_, err := io.WriteString(conn, greeting)
	for header := make([]byte, headerSize); err == nil && header[3] != goAway; {
		if _, err = io.ReadFull(conn, header); err == nil {
			_, err = io.CopyN(io.Discard, conn, int64(header[0])<<16|int64(header[1])<<8|int64(header[2]))
		}
	}
}
