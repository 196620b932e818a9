// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	maxDevices = resourceapi.AllocationResultsMaxSize // devices of a claim
	maxCalls   = 16
)

// Sources of the rules. Paths below pkg are of Kubernetes v1.36.
const (
	fromPlugins = "pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go"
	fromDRA     = "pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go"
	fromManager = "pkg/kubelet/cm/dra/manager.go"
	fromTypes   = "k8s.io/api/resource/v1/types.go"
	fromProto   = "k8s.io/kubelet/pkg/apis/dra/v1/api.proto"
	fromPrepare = "KEP-4381, NodePrepareResources"
	fromRelease = "KEP-4381, NodeUnprepareResources"
	fromHealth  = "KEP-4680, k8s.io/kubelet/pkg/apis/dra-health/v1alpha1/api.proto"
)

// check is one rule. run returns the evidence that the driver follows it.
type check struct {
	name, rule, source string
	run                func(trial) string
}

// checks run in this order.
var checks = []check{
	{"registration/info", "A socket in the registration directory answers GetInfo within a second as a DRAPlugin, with a DNS subdomain as its name.", fromPlugins, checkInfo},
	{"registration/services", "GetInfo names v1.DRAPlugin or v1beta1.DRAPlugin, and each service that it names answers at the endpoint.", fromDRA + ", validateSupportedServices", checkServices},
	{"registration/notify", "NotifyRegistrationStatus succeeds each time, because the kubelet sends it again after its restart.", fromPlugins, checkNotify},
	{"slices/pools", "All slices of a pool have one generation, and their number is resourceSliceCount. Otherwise the scheduler does not use the pool.", fromTypes + ", ResourcePool", checkPools},
	{"slices/devices", "The name of a device is a DNS label and unique in its pool. A slice has at most 128 devices, 64 with taints or counters. Attributes have valid names, lengths and formats.", fromTypes + ", Device", checkContents},
	{"slices/wipe", "The driver writes deleted slices again with the same devices, because a kubelet deletes them when it starts.", fromDRA + ", wipeResourceSlices", checkWipe},
	{"prepare/devices", "The answer has the devices of the allocation with their requests. PodResources and the health of pods use it.", fromProto + ", KEP-3695, KEP-4680", checkDevices},
	{"prepare/cdi", "Each CDI device of the answer can be resolved when the answer arrives.", fromPrepare, checkCDI},
	{"prepare/again", "A second request for a prepared claim has the same answer. The kubelet sends it after each of its restarts.", fromPrepare, func(t trial) string { return t.twice(func() {}) }},
	{"prepare/concurrent", "Two requests for one claim at once have the same answer, because two pods can share a claim.", fromPrepare, checkConcurrent},
	{"prepare/batch", "The answer has an entry for each claim of the request.", fromManager + ", prepareResources", checkBatch},
	{"prepare/shares", "Two claims can have a device that allows several allocations. The answers have the IDs of their shares, CDI devices that were made for the claims have different names, and the release of one claim leaves the other prepared.", "KEP-5075", checkShares},
	{"prepare/empty", "A request without claims succeeds.", fromProto, func(t trial) string {
		_, err := t.prepareOnce()
		t.must(err)
		return "succeeded"
	}},
	{"prepare/missing", "A claim that does not exist in the API is refused.", fromPrepare + " Errors", func(t trial) string { return t.checkRefused(t.unknown()) }},
	{"prepare/uid", "A claim with another UID than in the API is refused, because it was replaced.", fromPrepare + " Errors", func(t trial) string {
		other := *t.claim(1)
		other.uid = t.unknown().uid
		return t.checkRefused(&other)
	}},
	{"prepare/foreign", "A claim without a device of the driver gets none from it.", fromProto, checkForeign},
	{"unprepare/cdi", "CDI devices that were made for a claim cannot be resolved after its release.", fromRelease, func(t trial) string { return t.releaseAfter(func() {}) }},
	{"unprepare/again", "The release of a released claim succeeds.", fromRelease, checkReleasedAgain},
	{"unprepare/unknown", "The release of a claim that was never prepared succeeds, because the kubelet may not know whether it was.", fromRelease, func(t trial) string {
		t.must(t.unprepareOnce(t.unknown()))
		return "succeeded"
	}},
	{"unprepare/deleted", "A claim can be released after it was deleted in the API, because pods can be deleted by force.", fromManager + ", unprepareResources", checkDeleted},
	{"unprepare/empty", "A request without claims succeeds.", fromProto, func(t trial) string {
		t.must(t.unprepareOnce())
		return "succeeded"
	}},
	{"unprepare/next", "The next claim can have the devices of a released claim.", fromRelease, checkNext},
	{"limits/devices", "A claim can have 32 devices, or all if the driver has fewer.", fromTypes + ", AllocationResultsMaxSize", checkManyDevices},
	{"limits/calls", "The driver answers 16 requests at once, as when the pods of a node start together.", fromManager, checkManyCalls},
	{"health/first", "The first message arrives within 10 s. It has each published device once, with a time that has passed and a valid timeout.", fromHealth, checkHealth},
	{"restart/slices", "After a restart of the driver the devices have the same names, and the slices stay.", fromTypes + ", Device.Name", checkRestartSlices},
	{"restart/prepare", "After a restart of the driver, a prepared claim has the same answer, and its CDI devices can be resolved.", fromPrepare, func(t trial) string {
		return t.twice(func() { t.command("restart", t.restart) })
	}},
	{"restart/unprepare", "After a restart of the driver, a claim can be released, and its CDI devices are gone.", fromRelease, func(t trial) string {
		return t.releaseAfter(func() { t.command("restart", t.restart) })
	}},
	{"boot/prepare", "After a boot, when there are no CDI specs, a prepared claim has the same answer, and its CDI devices can be resolved.", fromPrepare + ", kubernetes/kubernetes#141433", func(t trial) string {
		return t.twice(func() { t.command("boot", t.boot) })
	}},
	{"boot/unprepare", "After a boot, a prepared claim can be released without a new request to prepare it.", fromRelease, func(t trial) string {
		return t.releaseAfter(func() { t.command("boot", t.boot) })
	}},
}

func checkInfo(t trial) string {
	p, err := t.connect()
	t.must(err)
	if p.info.Type != registration.DRAPlugin {
		t.fail("the type is %q, not %q", p.info.Type, registration.DRAPlugin)
	}
	if wrong := validation.IsDNS1123Subdomain(p.info.Name); len(wrong) > 0 || len(p.info.Name) > resourceapi.DriverNameMaxLength {
		t.fail("the name %q has %d characters; %s", p.info.Name, len(p.info.Name), strings.Join(wrong, "; "))
	}
	return p.socket
}

func checkServices(t trial) string {
	p, err := t.connect()
	t.must(err)
	if p.path == "" {
		t.fail("GetInfo names only %q", p.info.SupportedVersions)
	}
	if p.info.Endpoint != "" && !filepath.IsAbs(p.info.Endpoint) {
		t.fail("the endpoint %q is not an absolute path", p.info.Endpoint)
	}
	for _, service := range p.info.SupportedVersions {
		if path := paths[service]; path != "" {
			err = p.conn.Invoke(t.ctx, path+"NodePrepareResources", &drapb.NodePrepareResourcesRequest{}, &drapb.NodePrepareResourcesResponse{})
		} else if service == healthService {
			_, err = t.health()
		}
		if err != nil {
			t.fail("%s at %s: %w", service, p.info.Endpoint, err)
		}
	}
	return strings.Join(p.info.SupportedVersions, ", ") + " at " + p.info.Endpoint
}

func checkNotify(t trial) string {
	p, err := t.connect()
	t.must(err)
	for range 2 {
		_, err := registration.NewRegistrationClient(p.registry).NotifyRegistrationStatus(t.ctx, &registration.RegistrationStatus{PluginRegistered: true})
		t.must(err)
	}
	return "succeeded twice"
}

func checkPools(t trial) string {
	all := t.waitPublished()
	return fmt.Sprintf("%d devices in %d slices", len(names(all)), len(all))
}

// formats are those of attributes that Kubernetes defines.
var formats = map[resourceapi.QualifiedName]*regexp.Regexp{
	"resource.kubernetes.io/pcieRoot": regexp.MustCompile(`^pci[0-9a-f]{4,}:[0-9a-f]{2}$`),
	"resource.kubernetes.io/pciBusID": regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`),
}

// qualified matches the name of an attribute or a capacity.
var qualified = regexp.MustCompile(`^([a-z0-9.-]{1,63}/)?[A-Za-z_][A-Za-z0-9_]{0,31}$`)

func checkContents(t trial) string {
	all := t.waitPublished()
	seen, count := make(map[string]bool), 0
	for _, slice := range all {
		limit := resourceapi.ResourceSliceMaxDevices
		for _, d := range slice.Spec.Devices {
			if len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 {
				limit = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures
			}
			name := device{slice.Spec.Pool.Name, d.Name}.String()
			if seen[name] {
				t.fail("two devices have the name %s", name)
			}
			seen[name] = true
			if wrong := validation.IsDNS1123Label(d.Name); len(wrong) > 0 {
				t.fail("device %s: %s", name, strings.Join(wrong, "; "))
			}
			for n := range d.Capacity {
				if count++; !qualified.MatchString(string(n)) {
					t.fail("device %s: invalid name of a capacity %q", name, n)
				}
			}
			for n, a := range d.Attributes {
				text := ""
				if a.StringValue != nil {
					text = *a.StringValue
				}
				if count++; !qualified.MatchString(string(n)) || len(text) > resourceapi.DeviceAttributeMaxValueLength ||
					formats[n] != nil && !formats[n].MatchString(text) {
					t.fail("device %s: invalid attribute %q: %q", name, n, text)
				}
			}
		}
		if len(slice.Spec.Devices) > limit {
			t.fail("slice %s has %d devices, not at most %d", slice.Name, len(slice.Spec.Devices), limit)
		}
	}
	return fmt.Sprintf("%d names, %d attributes and capacities", len(seen), count)
}

func checkWipe(t trial) string {
	before := t.waitPublished()
	for _, slice := range before {
		t.must(t.kube.ResourceV1().ResourceSlices().Delete(t.ctx, slice.Name, metav1.DeleteOptions{}))
	}
	began := time.Now()
	if err := t.await(t.wipe, func() error {
		after, err := t.slices()
		return errors.Join(err, differ(names(before), names(after)))
	}); err != nil {
		t.fail("after %v: %w", t.wipe, err)
	}
	return fmt.Sprintf("%d devices are back after %v", len(names(before)), time.Since(began).Round(time.Millisecond))
}

// prepareNew makes a claim of n devices and prepares it.
func (t trial) prepareNew(n int) (*claim, []*drapb.Device) {
	c := t.claim(n)
	got, err := t.prepare(c)
	t.must(err)
	return c, got[c.uid]
}

// checkAllocated returns an error unless an answer has the devices of the claim.
func (c *claim) checkAllocated(got []*drapb.Device) error {
	var want, have []string
	for _, d := range c.devices {
		want = append(want, d.String())
	}
	for _, d := range got {
		have = append(have, device{d.PoolName, d.DeviceName}.String())
		if i := slices.IndexFunc(d.RequestNames, func(name string) bool { return name != request }); i >= 0 {
			return fmt.Errorf("device %s is for the request %q, which the claim does not have", d.DeviceName, d.RequestNames[i])
		}
		if d.GetShareId() != c.share {
			return fmt.Errorf("device %s has the share %q, and the allocation has %q", d.DeviceName, d.GetShareId(), c.share)
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	return differ(want, slices.Compact(have))
}

func checkDevices(t trial) string {
	c, got := t.prepareNew(1)
	t.must(c.checkAllocated(got))
	return strings.Join(texts(got), ", ")
}

func checkCDI(t trial) string {
	_, got := t.prepareNew(1)
	t.must(t.resolve(cdiIDs(got)...))
	if len(cdiIDs(got)) == 0 {
		return "the answer has no CDI device, which is allowed"
	}
	return strings.Join(cdiIDs(got), ", ")
}

// twice prepares a claim before and after a step, compares the answers, and resolves the CDI devices.
func (t trial) twice(step func()) string {
	c, before := t.prepareNew(1)
	step()
	after, err := t.prepare(c)
	t.must(err)
	t.must(differ(texts(before), texts(after[c.uid])))
	t.must(t.resolve(cdiIDs(after[c.uid])...))
	return "the same " + strings.Join(texts(before), ", ")
}

func checkConcurrent(t trial) string {
	c := t.claim(1)
	var got [2][]*drapb.Device
	t.must(t.atOnce(len(got), func(i int) error {
		all, err := t.prepare(c)
		got[i] = all[c.uid]
		return err
	}))
	t.must(differ(texts(got[0]), texts(got[1])))
	t.must(t.resolve(cdiIDs(got[0])...))
	return "the same " + strings.Join(texts(got[0]), ", ")
}

func checkBatch(t trial) string {
	first, second := t.claim(1), t.claim(1)
	got, err := t.prepare(first, second)
	t.must(err)
	t.must(errors.Join(first.checkAllocated(got[first.uid]), second.checkAllocated(got[second.uid])))
	t.must(t.unprepare(first, second))
	return "2 claims in a request"
}

func checkShares(t trial) string {
	shared := t.free(true)
	if len(shared) == 0 {
		t.must(skip("no device that allows several allocations is free"))
	}
	before := t.cdiDevices()
	first, second := t.allocate(t.driver, shared[0]), t.allocate(t.driver, shared[0])
	ids := make(map[*claim][]string)
	for _, c := range []*claim{first, second} {
		got, err := t.prepare(c)
		t.must(err)
		t.must(c.checkAllocated(got[c.uid]))
		ids[c] = cdiIDs(got[c.uid])
	}
	for _, id := range ids[first] {
		if slices.Contains(ids[second], id) && !slices.Contains(before, id) {
			t.fail("both claims have the CDI device %s", id)
		}
	}
	t.must(t.resolve(slices.Concat(ids[first], ids[second])...))
	t.must(t.unprepare(first))
	t.must(t.resolve(ids[second]...))
	return fmt.Sprintf("%s has %v and %v", shared[0], ids[first], ids[second])
}

// unknown returns a claim that is not in the API.
func (t trial) unknown() *claim {
	return &claim{namespace: t.namespace, name: t.prefix + "unknown", uid: string(uuid.NewUUID())}
}

// checkRefused checks that the driver does not prepare a claim. The driver may refuse the claim or, like the Kubernetes library
// for drivers, the whole request. The kubelet does the same in both cases. Afterwards the driver must still answer requests.
func (t trial) checkRefused(c *claim) string {
	got, refusal := t.prepareOnce(c)
	if refusal == nil {
		t.fail("the driver answered %q without an error", texts(got[c.uid]))
	}
	_, err := t.prepareOnce()
	t.must(err)
	return refusal.Error()
}

func checkForeign(t trial) string {
	c := t.allocate("other.example.com", device{t.node, "none"})
	got, err := t.prepareOnce(c)
	if err != nil {
		return err.Error()
	}
	if len(got[c.uid]) > 0 {
		t.fail("the driver answered %q", texts(got[c.uid]))
	}
	return "prepared without a device"
}

// releaseAfter prepares a claim, and releases it after a step. After the release, CDI devices that were made for the claim must
// be gone.
func (t trial) releaseAfter(step func()) string {
	c := t.claim(1)
	before := t.cdiDevices()
	got, err := t.prepare(c)
	t.must(err)
	step()
	t.must(t.unprepare(c))
	made := slices.DeleteFunc(cdiIDs(got[c.uid]), func(id string) bool { return slices.Contains(before, id) })
	for _, id := range made {
		if t.resolve(id) == nil {
			t.fail("CDI device %s can still be resolved", id)
		}
	}
	return fmt.Sprintf("%d CDI devices of the claim are gone", len(made))
}

func checkReleasedAgain(t trial) string {
	c, _ := t.prepareNew(1)
	t.must(t.unprepare(c))
	t.must(t.unprepareOnce(c))
	return "succeeded twice"
}

func checkDeleted(t trial) string {
	c, _ := t.prepareNew(1)
	t.must(t.remove(c))
	t.must(t.unprepare(c))
	return "succeeded without the claim"
}

func checkNext(t trial) string {
	c, _ := t.prepareNew(1)
	t.must(t.unprepare(c))
	t.must(t.remove(c))
	next := t.allocate(t.driver, c.devices...)
	got, err := t.prepare(next)
	t.must(err)
	t.must(next.checkAllocated(got[next.uid]))
	t.must(t.resolve(cdiIDs(got[next.uid])...))
	return strings.Join(texts(got[next.uid]), ", ")
}

func checkManyDevices(t trial) string {
	n := min(len(t.free(false)), maxDevices)
	if n < 2 {
		t.must(skip(fmt.Sprintf("%d devices are free", n)))
	}
	c, got := t.prepareNew(n)
	t.must(c.checkAllocated(got))
	t.must(t.resolve(cdiIDs(got)...))
	return fmt.Sprintf("%d devices", n)
}

func checkManyCalls(t trial) string {
	var claims []*claim
	for range max(1, min(len(t.free(false)), maxCalls)) {
		claims = append(claims, t.claim(1))
	}
	got := make([][]*drapb.Device, maxCalls)
	t.must(t.atOnce(maxCalls, func(i int) error {
		c := claims[i%len(claims)]
		all, err := t.prepare(c)
		got[i] = all[c.uid]
		return errors.Join(err, c.checkAllocated(got[i]))
	}))
	t.must(t.resolve(cdiIDs(slices.Concat(got...))...))
	t.must(t.atOnce(maxCalls, func(i int) error { return t.unprepare(claims[i%len(claims)]) }))
	return fmt.Sprintf("%d requests for %d claims, and as many releases", maxCalls, len(claims))
}

// health returns the first message about the health of devices.
func (t trial) health() ([]*health.DeviceHealth, error) {
	p, err := t.connect()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.ctx, healthTimeout)
	defer cancel()
	stream, err := health.NewDRAResourceHealthClient(p.conn).NodeWatchResources(ctx, &health.NodeWatchResourcesRequest{})
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	return first.GetDevices(), err
}

func checkHealth(t trial) string {
	p, err := t.connect()
	t.must(err)
	if !slices.Contains(p.info.SupportedVersions, healthService) {
		t.must(skip("the driver does not offer " + healthService))
	}
	all := t.waitPublished()
	began := time.Now()
	devices, err := t.health()
	t.must(err)
	took := time.Since(began).Round(time.Millisecond)
	var have []string
	for _, d := range devices {
		have = append(have, device{d.GetDevice().GetPoolName(), d.GetDevice().GetDeviceName()}.String())
		at := time.Unix(d.GetLastUpdatedTime(), 0)
		if at.Unix() <= 0 || at.After(time.Now().Add(time.Minute)) || d.GetHealthCheckTimeoutSeconds() < 0 {
			t.fail("%v has the time %v and the timeout %d s", d.GetDevice(), at, d.GetHealthCheckTimeoutSeconds())
		}
	}
	slices.Sort(have)
	t.must(differ(names(all), have))
	return fmt.Sprintf("%d devices after %v", len(have), took)
}

func checkRestartSlices(t trial) string {
	before := t.waitPublished()
	t.command("restart", t.restart)
	select {
	case <-t.ctx.Done():
	case <-time.After(t.settle):
	}
	t.must(t.await(t.timeout, func() error {
		after, err := t.slices()
		err = errors.Join(err, differ(names(before), names(after)))
		for _, was := range before {
			if !slices.ContainsFunc(after, func(is resourceapi.ResourceSlice) bool { return is.UID == was.UID }) {
				err = errors.Join(err, fmt.Errorf("slice %s was deleted", was.Name))
			}
		}
		return err
	}))
	return fmt.Sprintf("the same %d devices in the same %d slices", len(names(before)), len(before))
}
