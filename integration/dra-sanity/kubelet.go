// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/kubernetes"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

const (
	infoTimeout   = time.Second      // of GetInfo, as in pkg/kubelet/pluginmanager/operationexecutor of kubernetes
	callTimeout   = 45 * time.Second // of a request to the driver, as in pkg/kubelet/cm/dra/plugin of kubernetes
	healthTimeout = 10 * time.Second // of the first message about health, until which the pod status has no health
	minPause      = 20 * time.Millisecond
	maxPause      = time.Second
)

// paths has the services for claims with the path of their methods.
var paths = map[string]string{
	drapb.DRAPluginService:   "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/",
	v1beta1.DRAPluginService: "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/",
}

// healthService is the service that streams the health of devices.
var healthService = health.DRAResourceHealth_ServiceDesc.ServiceName

// sanity has the state of all checks.
type sanity struct {
	options
	kube   kubernetes.Interface
	prefix string // of the names of claims and pods
	count  int    // of claims
	claims []*claim
	shared map[device]capacity // what a claim consumes of a device that several claims can have
	plugin *plugin             // nil if not connected
	silent bool                // the last wait for the socket failed
	bare   bool                // the last wait for a device in the slices failed
}

// trial is one run of a check. Its method must ends the run, as [testing.T.FailNow] does.
type trial struct {
	*sanity
	ctx context.Context
}

// failure ends a trial.
type failure struct{ error }

// skip is an error that says why a check cannot run.
type skip string

func (s skip) Error() string { return string(s) }

func (t trial) must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func (t trial) fail(format string, args ...any) { t.must(fmt.Errorf(format, args...)) }

// try runs a check, and removes its claims. It returns the outcome with the evidence or the reason.
func (s *sanity) try(ctx context.Context, c check) (outcome, detail string) {
	defer func() {
		end := recover()
		if f, ended := end.(failure); ended {
			outcome, detail = failed, strings.Join(strings.Fields(f.Error()), " ")
			if _, skips := f.error.(skip); skips {
				outcome = skipped
			}
		} else if end != nil {
			panic(end)
		}
		if err := s.cleanUp(context.WithoutCancel(ctx)); err != nil {
			outcome, detail = failed, detail+"; clean up: "+err.Error()
		}
	}()
	return passed, c.run(trial{s, ctx})
}

// found calls try until try succeeds or the time limit has passed. If the last wait failed, found calls try only once, because
// otherwise each check would wait for a driver that is not there.
func (t trial) found(failed *bool, try func() error) error {
	limit := t.timeout
	if *failed {
		limit = 0
	}
	err := t.await(limit, try)
	*failed = err != nil
	return err
}

// await calls try until try succeeds or the time limit has passed. It returns the last result of try. The pause between two calls
// doubles, because many requests would delay the work for which they wait.
func (t trial) await(limit time.Duration, try func() error) error {
	for end, pause := time.Now().Add(limit), minPause; ; pause = min(2*pause, maxPause) {
		err := try()
		if err == nil || time.Now().After(end) {
			return err
		}
		select {
		case <-t.ctx.Done():
			return t.ctx.Err()
		case <-time.After(pause):
		}
	}
}

// plugin is a connection to a registered driver.
type plugin struct {
	socket   string
	info     *registration.PluginInfo
	registry *grpc.ClientConn
	conn     *grpc.ClientConn // to the endpoint
	path     string           // of the methods for claims
}

// connect returns the connection to the driver. It waits until a socket in the registration directory answers.
func (t trial) connect() (*plugin, error) {
	if t.plugin != nil {
		return t.plugin, nil
	}
	if err := t.found(&t.silent, t.register); err != nil {
		return nil, err
	}
	p := t.plugin
	for _, service := range slices.Backward(p.info.SupportedVersions) {
		p.path = cmp.Or(paths[service], p.path) // the kubelet uses the first one that it knows
	}
	var err error
	p.conn, err = dial(cmp.Or(p.info.Endpoint, p.socket))
	return p, err
}

// register asks all sockets in the registration directory which plugin they belong to. Like the kubelet, it ignores
// names with a leading dot.
func (t trial) register() error {
	missing := fmt.Errorf("no socket of %s in %s", t.driver, t.registration)
	err := filepath.WalkDir(t.registration, func(socket string, e fs.DirEntry, wrong error) error {
		if wrong != nil || e.Type() != fs.ModeSocket || strings.HasPrefix(e.Name(), ".") {
			return wrong
		}
		conn, wrong := dial(socket)
		if wrong != nil {
			return wrong
		}
		ctx, cancel := context.WithTimeout(t.ctx, infoTimeout)
		defer cancel()
		info, wrong := registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{})
		if wrong != nil || info.Name != t.driver {
			missing = errors.Join(missing, wrong)
			return conn.Close()
		}
		t.plugin = &plugin{socket: socket, info: info, registry: conn}
		return fs.SkipAll
	})
	switch {
	case t.plugin != nil:
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", missing, err)
	}
	return missing
}

func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// disconnect closes the connection, so that the next request connects again.
func (s *sanity) disconnect() {
	if p := s.plugin; p != nil {
		p.registry.Close()
		if p.conn != nil {
			p.conn.Close()
		}
	}
	s.plugin = nil
}

// answer is the driver's answer for a claim.
type answer interface{ GetError() string }

// call sends one request for claims to the driver.
func (t trial) call(method string, request, answer any) error {
	p, err := t.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.ctx, callTimeout)
	defer cancel()
	if err := p.conn.Invoke(ctx, p.path+method, request, answer); err != nil {
		return fmt.Errorf("%s failed: %w", method, err)
	}
	return nil
}

// judge returns an error unless there is exactly one answer for each claim, and no answer has an error. The kubelet
// does the same.
func judge[A answer](answers map[string]A, claims []*claim) error {
	var errs []error
	for _, c := range claims {
		a, found := answers[c.uid]
		if !found {
			errs = append(errs, fmt.Errorf("the answer has no claim %s", c.uid))
		} else if text := a.GetError(); text != "" {
			errs = append(errs, fmt.Errorf("claim %s was refused: %s", c.uid, text))
		}
	}
	if len(answers) > len(claims) {
		errs = append(errs, fmt.Errorf("the answer has %d claims, the request had %d", len(answers), len(claims)))
	}
	return errors.Join(errs...)
}

// prepareOnce sends one request to prepare claims, and returns the devices by the UID of the claim.
func (t trial) prepareOnce(claims ...*claim) (map[string][]*drapb.Device, error) {
	var got drapb.NodePrepareResourcesResponse
	if err := t.call("NodePrepareResources", &drapb.NodePrepareResourcesRequest{Claims: references(claims)}, &got); err != nil {
		return nil, err
	}
	devices := make(map[string][]*drapb.Device)
	for uid, a := range got.Claims {
		devices[uid] = a.GetDevices()
	}
	return devices, judge(got.Claims, claims)
}

// prepare prepares claims. Like the kubelet, it asks again after an error.
func (t trial) prepare(claims ...*claim) (devices map[string][]*drapb.Device, err error) {
	err = t.await(t.timeout, func() error {
		devices, err = t.prepareOnce(claims...)
		return err
	})
	return devices, err
}

// unprepareOnce sends one request to release claims.
func (t trial) unprepareOnce(claims ...*claim) error {
	var got drapb.NodeUnprepareResourcesResponse
	if err := t.call("NodeUnprepareResources", &drapb.NodeUnprepareResourcesRequest{Claims: references(claims)}, &got); err != nil {
		return err
	}
	return judge(got.Claims, claims)
}

// unprepare releases claims. Like the kubelet, it asks again after an error.
func (t trial) unprepare(claims ...*claim) error {
	return t.await(t.timeout, func() error { return t.unprepareOnce(claims...) })
}

func references(claims []*claim) (all []*drapb.Claim) {
	for _, c := range claims {
		all = append(all, &drapb.Claim{Namespace: c.namespace, Uid: c.uid, Name: c.name})
	}
	return all
}

// atOnce makes n concurrent calls of do after it has connected. do must not end the trial.
func (t trial) atOnce(n int, do func(int) error) error {
	_, err := t.connect()
	t.must(err)
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// texts returns one text for each device of an answer, for comparisons.
func texts(devices []*drapb.Device) (all []string) {
	for _, d := range devices {
		slices.Sort(d.RequestNames)
		slices.Sort(d.CdiDeviceIds)
		all = append(all, fmt.Sprintf("%s/%s for %v as %v", d.PoolName, d.DeviceName, d.RequestNames, d.CdiDeviceIds))
	}
	slices.Sort(all)
	return all
}

// cdiIDs returns the CDI devices of an answer.
func cdiIDs(devices []*drapb.Device) (ids []string) {
	for _, d := range devices {
		ids = append(ids, d.CdiDeviceIds...)
	}
	return ids
}

// resolve injects CDI devices into an empty container, as a container runtime does.
func (t trial) resolve(ids ...string) error {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(t.cdi...), cdi.WithAutoRefresh(false))
	if err != nil || len(ids) == 0 {
		return err
	}
	_, err = cache.InjectDevices(&specs.Spec{}, ids...)
	return err
}

// cdiDevices returns all CDI devices of the node.
func (t trial) cdiDevices() []string {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(t.cdi...), cdi.WithAutoRefresh(false))
	t.must(err)
	return cache.ListDevices()
}

// command runs a command of the operator, and waits until the driver answers again.
func (t trial) command(flag, command string) {
	if command == "" {
		t.must(skip("no command: set --" + flag))
	}
	t.disconnect()
	ctx, cancel := context.WithTimeout(t.ctx, t.timeout)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput(); ctx.Err() != nil {
		t.fail("the command of --%s took longer than --timeout %v: %s", flag, t.timeout, out)
	} else if err != nil {
		t.fail("the command of --%s failed: %w: %s", flag, err, out)
	}
	t.must(t.await(t.timeout, func() error {
		_, err := t.prepareOnce()
		if err != nil {
			t.disconnect() // its sockets may have other names
		}
		return err
	}))
}
