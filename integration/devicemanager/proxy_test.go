// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// moment is a point at which the proxy can hold a call between the device manager and a plugin. Either the request is on its
// way to the other side, or the answer is on its way back.
type moment string

// The moments of a plugin's life.
const (
	registerAsked    moment = "Register asked"
	registerAnswered moment = "Register answered"
	optionsAsked     moment = "GetDevicePluginOptions asked"
	preferAnswered   moment = "GetPreferredAllocation answered"
	allocateAsked    moment = "Allocate asked"
	allocateAnswered moment = "Allocate answered"
	preStartAsked    moment = "PreStartContainer asked"
	preStartAnswered moment = "PreStartContainer answered"
	streamEnded      moment = "ListAndWatch ended" // the plugin ended the stream
)

// realSocket is the socket of a device manager behind a proxy. The kubelet's clean-up removes it like any socket. Other
// processes ignore dot files.
const realSocket = ".kubelet.sock"

// proxy is a proxy between the device manager of a node and its plugins, so that the test can act at an exact moment of
// a call.
//
// It serves kubelet.sock, and a socket for each registered endpoint. This socket has the endpoint's name with a leading
// dot, and is the one that the device manager knows. For each connection it opens one connection to the other side
// before it reads the first byte. If this fails, for example because a plugin's socket is gone, the connection fails
// too. If one side disconnects, the proxy disconnects from the other. All files are in one directory, so that the
// kubelet's clean-up and checkpoint use the usual paths. For a plugin, the kubelet is the test process across all
// restarts.
type proxy struct {
	dir string

	mu      sync.Mutex // guards all below
	servers map[string]*grpc.Server
	holds   map[moment]*hold
	edit    func(*api.ListAndWatchResponse)
	hear    func(resource string, nth int, list *api.ListAndWatchResponse)
}

// behindProxy starts a kubelet behind a proxy.
func behindProxy(t *testing.T, o Options) (*Kubelet, *proxy) {
	t.Helper()
	if o.Dir == "" {
		o.Dir = shortDir(t)
	}
	p := &proxy{
		dir:     filepath.Join(o.Dir, "device-plugins"),
		servers: map[string]*grpc.Server{}, holds: map[moment]*hold{}, edit: func(*api.ListAndWatchResponse) {},
		hear: func(string, int, *api.ListAndWatchResponse) {},
	}
	t.Cleanup(p.stop)
	o.Socket, o.Boots, o.Booted = realSocket, p.stop, p.boot
	return newNode(t, o), p
}

// offeredByProxy returns a node with a daemon, a proxy between the two, and visible widgets.
func offeredByProxy(t *testing.T, o Options, hardware []widget) (*Kubelet, *daemon, *proxy) {
	t.Helper()
	k, p := behindProxy(t, o)
	d := newDaemon(t, k.options.Dir, hardware)
	n := int64(len(hardware))
	sees(t, k, widgetResource, n, n)
	return k, d, p
}

// boot creates kubelet.sock for a kubelet that listens and has cleaned up its directory.
func (p *proxy) boot() error {
	return p.serve("kubelet.sock", realSocket, func(s *grpc.Server) { api.RegisterRegistrationServer(s, registry{proxy: p}) })
}

// stop ends all connections before the next kubelet listens, so that no connection leads to that kubelet. The sockets
// remain, like those of a killed process, until that kubelet removes them.
func (p *proxy) stop() {
	p.mu.Lock()
	servers := p.servers
	p.servers = map[string]*grpc.Server{}
	p.mu.Unlock()
	for _, s := range servers {
		s.Stop()
	}
}

// serve accepts connections at a socket of the directory, and connects each to another socket there.
func (p *proxy) serve(front, back string, register func(*grpc.Server)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.servers[front] != nil {
		return nil // registered again
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(p.dir, front), Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen in the kubelet's place: %w", err)
	}
	l.SetUnlinkOnClose(false)
	s := grpc.NewServer(grpc.Creds(through{TransportCredentials: insecure.NewCredentials(), back: filepath.Join(p.dir, back)}),
		grpc.MaxRecvMsgSize(math.MaxInt32))
	register(s)
	p.servers[front] = s
	go func() { _ = s.Serve(l) }() // serves until stop is called
	return nil
}

// registry is the device manager as plugins see it.
type registry struct {
	api.UnimplementedRegistrationServer
	*proxy
}

// Register registers the plugin with the proxy's endpoint.
func (p registry) Register(ctx context.Context, req *api.RegisterRequest) (*api.Empty, error) {
	endpoint, r := "."+req.Endpoint, relay{proxy: p.proxy, resource: req.ResourceName}
	err := p.serve(endpoint, req.Endpoint, func(s *grpc.Server) { api.RegisterDevicePluginServer(s, r) })
	if err != nil {
		return nil, err
	}
	req.Endpoint = endpoint
	return forward(ctx, r, "Register", req, api.NewRegistrationClient(otherSide(ctx)).Register)
}

// relay is a plugin as the device manager sees it.
type relay struct {
	api.UnimplementedDevicePluginServer
	*proxy
	resource string
}

func (r relay) GetDevicePluginOptions(ctx context.Context, req *api.Empty) (*api.DevicePluginOptions, error) {
	return forward(ctx, r, "GetDevicePluginOptions", req, plugin(ctx).GetDevicePluginOptions)
}

func (r relay) GetPreferredAllocation(ctx context.Context, req *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	return forward(ctx, r, "GetPreferredAllocation", req, plugin(ctx).GetPreferredAllocation)
}

func (r relay) Allocate(ctx context.Context, req *api.AllocateRequest) (*api.AllocateResponse, error) {
	return forward(ctx, r, "Allocate", req, plugin(ctx).Allocate)
}

func (r relay) PreStartContainer(ctx context.Context, req *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	return forward(ctx, r, "PreStartContainer", req, plugin(ctx).PreStartContainer)
}

func (r relay) ListAndWatch(req *api.Empty, kubelet api.DevicePlugin_ListAndWatchServer) error {
	ctx := kubelet.Context()
	stream, err := plugin(ctx).ListAndWatch(ctx, req)
	for nth := 0; err == nil; nth++ {
		var list *api.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			hear, edit := r.ears()
			hear(r.resource, nth, list)
			edit(list)
			err = kubelet.Send(list)
		}
	}
	r.pass(ctx, streamEnded)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// forward lets the other side answer.
func forward[Q, A any](ctx context.Context, r relay, method string, req Q, call func(context.Context, Q, ...grpc.CallOption) (A, error)) (A, error) {
	r.pass(ctx, moment(method+" asked"))
	answer, err := call(ctx, req)
	r.pass(ctx, moment(method+" answered"))
	return answer, err
}

// hold is a call that waits, or that will wait at its moment.
type hold struct {
	moment   moment
	reached  chan struct{} // closed when the call waits
	released chan struct{} // closed when the call may continue
}

// hold makes the next call for the widgets wait at a moment.
func (p *proxy) hold(m moment) *hold {
	h := &hold{moment: m, reached: make(chan struct{}), released: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds[m] = h
	return h
}

// release lets the call continue.
func (h *hold) release() { close(h.released) }

// await waits until the call waits.
func (h *hold) await(t *testing.T) {
	t.Helper()
	select {
	case <-h.reached:
	case <-time.After(patience):
		t.Fatalf("no call came to %q within %v", h.moment, patience)
	}
}

// pass waits if the test holds the call at this moment. If the caller disconnects, the call still continues to its end.
func (r relay) pass(ctx context.Context, m moment) {
	if r.resource != widgetResource {
		return
	}
	r.mu.Lock()
	h := r.holds[m]
	delete(r.holds, m)
	r.mu.Unlock()
	if h == nil {
		return
	}
	close(h.reached)
	select {
	case <-h.released:
	case <-ctx.Done():
	}
}

// editLists sets a function that changes each list on its way to the device manager.
func (p *proxy) editLists(edit func(*api.ListAndWatchResponse)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.edit = edit
}

// hearLists sets a function that gets each list as the plugin has sent it, with its resource and its index in the
// stream.
func (p *proxy) hearLists(hear func(resource string, nth int, list *api.ListAndWatchResponse)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hear = hear
}

// ears returns the functions of hearLists and editLists.
func (p *proxy) ears() (hear func(string, int, *api.ListAndWatchResponse), edit func(*api.ListAndWatchResponse)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hear, p.edit
}

// through is the transport of one side. Its handshake connects to the other side.
type through struct {
	credentials.TransportCredentials
	back string
}

// link is the connection to the other side.
type link struct {
	credentials.AuthInfo
	other *grpc.ClientConn
}

// ServerHandshake fails if the other side has no listener.
func (c through) ServerHandshake(front net.Conn) (net.Conn, credentials.AuthInfo, error) {
	front, info, err := c.TransportCredentials.ServerHandshake(front)
	if err != nil {
		return nil, nil, err
	}
	back, err := net.Dial("unix", c.back)
	if err != nil {
		return nil, nil, err
	}
	once := make(chan net.Conn, 1)
	once <- back
	close(once)
	other, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)), grpc.WithIdleTimeout(0),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if conn, ok := <-once; ok {
				return conn, nil
			}
			return nil, os.ErrClosed
		}))
	if err != nil {
		back.Close()
		return nil, nil, err
	}
	other.Connect()
	return &linked{Conn: front, other: other}, link{AuthInfo: info, other: other}, nil
}

// linked is a connection to the proxy, together with the proxy's connection to the other side.
type linked struct {
	net.Conn
	other *grpc.ClientConn
}

// Close closes both connections.
func (l *linked) Close() error { return errors.Join(l.Conn.Close(), l.other.Close()) }

// otherSide returns the connection to which a call is forwarded.
func otherSide(ctx context.Context) *grpc.ClientConn {
	p, _ := peer.FromContext(ctx) // every call has a peer
	return p.AuthInfo.(link).other
}

func plugin(ctx context.Context) api.DevicePluginClient {
	return api.NewDevicePluginClient(otherSide(ctx))
}
