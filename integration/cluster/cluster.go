// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes cluster on one machine: etcd, kube-apiserver, kube-scheduler,
// kube-controller-manager, and nodes with a real kubelet, metalplugd on recorded hardware, and a container runtime
// without containers. Only root can run it.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// startLimit limits the wait until a program is ready. The slowest program needs two seconds on two idle cores, and two
	// minutes on two cores that also run builds.
	startLimit = 4 * time.Minute
	// pollInterval is the time between two checks whether a program is ready.
	pollInterval = 20 * time.Millisecond
)

// Options has the programs of a cluster and the directory for its files.
type Options struct {
	Dir      string   // a new directory, which Stop removes, with a short path, because the path of a socket has at most 107 bytes
	Programs string   // the directory of metalplugd and of cluster/, where "make cluster-programs" puts its programs
	Release  string   // a release of Kubernetes, such as "v1.36", for which the program cluster/kube-RELEASE exists
	Server   []string // more flags of kube-apiserver
}

// Cluster is a control plane and its nodes. Its methods are for one goroutine at a time.
type Cluster struct {
	Client kubernetes.Interface // has the rights of an administrator

	options   Options
	lock      *os.File // the directory, which is locked until the cluster ends
	cleaner   *cleaner
	ports     []int // of the API server, etcd and its peers, the scheduler and the controllers
	authority *authority
	parts     []*process
	nodes     []*Node
}

// Start starts the control plane and returns when all parts are ready. After an error, no process is left. If this process
// is killed, all processes end and all files are removed.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	for _, file := range []*string{&o.Dir, &o.Programs} {
		var err error
		if *file, err = filepath.Abs(*file); err != nil {
			return nil, err
		}
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := removeStale(o.Dir); err != nil {
		return nil, err
	}
	if err := os.Mkdir(o.Dir, 0o700); err != nil {
		return nil, err
	}
	c := &Cluster{options: o}
	var err error
	if c.cleaner, err = startCleaner(c.cgroup(), o.Dir); err != nil {
		return nil, errors.Join(err, os.Remove(o.Dir))
	}
	if c.lock, err = lock(o.Dir); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// check returns an error if a requirement of a cluster is missing.
func (o Options) check() error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs root")
	}
	for _, tool := range []string{"unshare", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("a cluster needs %s, which is in util-linux: %w", tool, err)
		}
	}
	for _, program := range []string{"metalplugd", "metalplugctl", "cluster/cri", "cluster/kube-" + o.Release} {
		if _, err := os.Stat(filepath.Join(o.Programs, program)); err != nil {
			return fmt.Errorf("%w -> make cluster-programs RELEASE=%s", err, o.Release)
		}
	}
	_, err := ownAddress()
	return err
}

// lock locks the directory of a cluster. It fails at once if another process has locked the directory.
func lock(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another cluster runs in %s: %w", dir, err), d.Close())
	}
	return d, nil
}

// removeStale removes the directory of a cluster if the cluster and its cleaner were killed. It removes no other directory.
func removeStale(dir string) error {
	l, err := lock(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	defer l.Close()
	if _, err := os.Stat(filepath.Join(dir, "ca.key")); err != nil {
		return fmt.Errorf("%s exists and is not the directory of a cluster, or that cluster is starting or ending: %w", dir, err)
	}
	nodes, err := filepath.Glob(filepath.Join(dir, "*", "run"))
	if err != nil {
		return err
	}
	for _, run := range nodes {
		if err := unmountRun(filepath.Dir(run)); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// Stop ends all processes and removes all files.
func (c *Cluster) Stop() error {
	var errs []error
	for _, n := range slices.Clone(c.nodes) {
		errs = append(errs, n.Stop())
	}
	for _, p := range slices.Backward(c.parts) {
		p.kill()
	}
	if c.lock != nil {
		errs = append(errs, c.lock.Close())
	}
	return errors.Join(append(errs, c.cleaner.clean())...)
}

// File returns the path of a file of the cluster, such as admin.kubeconfig.
func (c *Cluster) File(name string) string { return filepath.Join(c.options.Dir, name) }

// Upgrade replaces the programs of the control plane with those of another release, and returns when all of them are ready.
// It does not change the nodes.
func (c *Cluster) Upgrade(ctx context.Context, release string) error {
	for _, p := range slices.Backward(c.parts) {
		p.kill()
	}
	c.parts, c.options.Release = nil, release
	return c.startParts(ctx)
}

// Replace replaces the control plane by a new one with the same address and certificates. It knows no object of the old one.
func (c *Cluster) Replace(ctx context.Context) error {
	for _, p := range slices.Backward(c.parts) {
		p.kill()
	}
	c.parts = nil
	return errors.Join(os.RemoveAll(c.File("etcd")), c.startParts(ctx))
}

// start creates and starts the control plane.
func (c *Cluster) start(ctx context.Context) error {
	var err error
	if c.ports, err = freePorts(5); err != nil {
		return err
	}
	if err := c.certify(fmt.Sprintf("https://127.0.0.1:%d", c.ports[0])); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	return c.startParts(ctx)
}

// startParts starts the programs of the control plane and waits until they are ready.
func (c *Cluster) startParts(ctx context.Context) error {
	ports := c.ports
	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	if err := c.run("etcd", "--data-dir="+c.File("etcd"), "--listen="+etcd, fmt.Sprintf("--peer=http://127.0.0.1:%d", ports[2])); err != nil {
		return err
	}
	if err := c.run("apiserver", c.serverFlags(etcd, ports[0])...); err != nil {
		return err
	}
	if err := c.await(ctx, "apiserver", c.Client.Discovery().RESTClient(), "/readyz"); err != nil {
		return err
	}
	if err := c.run("scheduler", c.componentFlags("scheduler", ports[3])...); err != nil {
		return err
	}
	// With its default of 20 requests a second, kube-controller-manager needs five seconds for the service accounts of its
	// controllers.
	if err := c.run("controllers", append(c.componentFlags("controllers", ports[4]),
		"--kube-api-qps=1000", "--kube-api-burst=1000",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+c.File("sa.key"), "--root-ca-file="+c.File("ca.crt"),
		"--cluster-signing-cert-file="+c.File("ca.crt"), "--cluster-signing-key-file="+c.File("ca.key"),
		"--flex-volume-plugin-dir="+c.File("volume-plugins"))...); err != nil {
		return err
	}
	for i, name := range []string{"scheduler", "controllers"} {
		probe, err := loopback(ports[3+i])
		if err != nil {
			return err
		}
		if err := c.await(ctx, name, probe, "/healthz"); err != nil {
			return err
		}
	}
	return poll(ctx, "no service account for pods", func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// certify creates the keys, certificates and kubeconfigs of the control plane.
func (c *Cluster) certify(server string) error {
	var err error
	if c.authority, err = newAuthority(c.options.Dir, server); err != nil {
		return err
	}
	return errors.Join(
		c.authority.serve("apiserver"),
		c.authority.client("admin", "kubernetes-admin", "system:masters"),
		c.authority.client("kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
		c.authority.client("scheduler", "system:kube-scheduler"),
		c.authority.client("controllers", "system:kube-controller-manager"))
}

func (c *Cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.File("admin.kubeconfig"))
	if err != nil {
		return err
	}
	config.QPS = -1 // no limit
	c.Client, err = kubernetes.NewForConfig(config)
	return err
}

// program returns the path of one of the cluster's programs.
func (c *Cluster) program(name string) string { return filepath.Join(c.options.Programs, name) }

// run starts a Kubernetes program as a part of the control plane.
func (c *Cluster) run(name string, flags ...string) error {
	p, err := spawn(c.options.Dir, name, append([]string{c.program("cluster/kube-" + c.options.Release), name}, flags...)...)
	if err == nil {
		c.parts = append(c.parts, p)
	}
	return err
}

// await waits until a part answers a request for path with success. It stops if a part has ended.
func (c *Cluster) await(ctx context.Context, name string, client rest.Interface, path string) error {
	return poll(ctx, name+" is not ready", func(ctx context.Context) error {
		for _, p := range c.parts {
			if !p.alive() {
				return fatal{p.ended()}
			}
		}
		return client.Get().AbsPath(path).Do(ctx).Error()
	})
}

// fatal is an error that ends a poll at once.
type fatal struct{ error }

// poll calls try until it returns nil or a fatal error, or startLimit has passed.
func poll(ctx context.Context, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	var last error
	for {
		err := try(ctx)
		var end fatal
		if err == nil || errors.As(err, &end) {
			return err
		}
		if last == nil || ctx.Err() == nil { // the last answer explains more than the end of ctx
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w; the last answer: %w", what, ctx.Err(), last)
		case <-time.After(pollInterval):
		}
	}
}

// loopback returns a client for a part with a self-signed certificate.
func loopback(port int) (rest.Interface, error) {
	return rest.UnversionedRESTClientFor(&rest.Config{
		Host:            net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		ContentConfig:   rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()},
	})
}

// freePorts returns ports of the loopback address that no process uses.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // deferred to the end of the function, so that all ports differ
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// ownAddress returns an address of this machine that is not a loopback address. A kubelet refuses loopback addresses
// (validateNodeIP in pkg/kubelet/kubelet_node_status.go). The API server requests logs from this address.
func ownAddress() (string, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range all {
		if network, ok := a.(*net.IPNet); ok && network.IP.IsGlobalUnicast() && network.IP.To4() != nil {
			return network.IP.String(), nil
		}
	}
	return "", errors.New("this machine has no IPv4 address but those of loopback")
}
