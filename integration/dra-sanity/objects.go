// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// request is the name of the request of each claim.
const request = "devices"

// device is a device of the driver by its pool and name.
type device struct{ pool, name string }

func (d device) String() string { return d.pool + "/" + d.name }

// claim is a claim that has devices.
type claim struct {
	namespace, name, uid string
	devices              []device
	share                string // ID of the share of the device, or empty
	deleted              bool   // deleted from the API
}

// slices returns the ResourceSlices of the driver for the node.
func (t trial) slices() ([]resourceapi.ResourceSlice, error) {
	list, err := t.kube.ResourceV1().ResourceSlices().List(t.ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + t.driver + "," + resourceapi.ResourceSliceSelectorNodeName + "=" + t.node,
	})
	if err != nil {
		return nil, err
	}
	return list.Items, complete(list.Items)
}

// complete returns an error if the scheduler would not use a pool.
func complete(all []resourceapi.ResourceSlice) error {
	count := make(map[resourceapi.ResourcePool]int64)
	for _, slice := range all {
		count[slice.Spec.Pool]++
	}
	names := make(map[string]bool)
	for pool, n := range count {
		if names[pool.Name] {
			return fmt.Errorf("the slices of pool %s have different generations or counts", pool.Name)
		}
		if names[pool.Name] = true; n != pool.ResourceSliceCount {
			return fmt.Errorf("pool %s has %d slices, and its resourceSliceCount is %d", pool.Name, n, pool.ResourceSliceCount)
		}
	}
	return nil
}

// waitPublished waits until all pools are complete and have a device, and returns their slices.
func (t trial) waitPublished() (all []resourceapi.ResourceSlice) {
	t.must(t.found(&t.bare, func() (err error) {
		if all, err = t.slices(); err == nil && len(names(all)) == 0 {
			err = fmt.Errorf("the ResourceSlices of %s for %s have no device", t.driver, t.node)
		}
		return err
	}))
	return all
}

// names returns the sorted names of all devices in slices.
func names(all []resourceapi.ResourceSlice) (names []string) {
	for _, slice := range all {
		for _, d := range slice.Spec.Devices {
			names = append(names, device{slice.Spec.Pool.Name, d.Name}.String())
		}
	}
	slices.Sort(names)
	return names
}

// differ returns an error if two sorted lists are not equal.
func differ(before, after []string) error {
	if slices.Equal(before, after) {
		return nil
	}
	missing := slices.DeleteFunc(slices.Clone(before), func(s string) bool { return slices.Contains(after, s) })
	added := slices.DeleteFunc(slices.Clone(after), func(s string) bool { return slices.Contains(before, s) })
	return fmt.Errorf("%d expected, %d found; missing: %q; unexpected: %q", len(before), len(after), missing, added)
}

// capacity is what a claim consumes of a device that several claims can have.
type capacity = map[resourceapi.QualifiedName]resource.Quantity

// consumedCapacity returns the capacity that a request without numbers consumes, and whether two such requests fit the device.
func consumedCapacity(d resourceapi.Device) (used capacity, twice bool) {
	used = make(capacity)
	for name, c := range d.Capacity {
		one := c.Value
		if c.RequestPolicy != nil && c.RequestPolicy.Default != nil {
			one = *c.RequestPolicy.Default
		}
		used[name] = one.DeepCopy()
		if one.Add(one); one.Cmp(c.Value) > 0 {
			return nil, false
		}
	}
	return used, true
}

// free returns the devices that one claim can get, or those that two claims can share. They have no taint and are in no claim.
func (t trial) free(shared bool) (free []device) {
	claims, err := t.kube.ResourceV1().ResourceClaims("").List(t.ctx, metav1.ListOptions{})
	t.must(err)
	used := make(map[device]bool)
	for _, c := range claims.Items {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			used[device{r.Pool, r.Device}] = used[device{r.Pool, r.Device}] || r.Driver == t.driver
		}
	}
	for _, slice := range t.waitPublished() {
		for _, d := range slice.Spec.Devices {
			at := device{slice.Spec.Pool.Name, d.Name}
			several := d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
			fits := len(d.ConsumesCounters) == 0
			if several && fits {
				t.shared[at], fits = consumedCapacity(d)
			}
			if fits && several == shared && !used[at] && len(d.Taints) == 0 && t.devices.MatchString(d.Name) {
				free = append(free, at)
			}
		}
	}
	return free
}

// claim creates a claim with n devices. A driver may need time until the devices of an earlier claim are free.
func (t trial) claim(n int) *claim {
	if has := len(names(t.waitPublished())); has < n {
		t.must(skip(fmt.Sprintf("needs %d devices, the driver has %d", n, has)))
	}
	var free []device
	t.must(t.await(t.timeout, func() error {
		if free = t.free(false); len(free) < n {
			return skip(fmt.Sprintf("needs %d devices, and %d are free", n, len(free)))
		}
		return nil
	}))
	return t.allocate(t.driver, free[:n]...)
}

// allocate creates a claim with an allocation, like the scheduler, and a pod that uses it. Without a pod on the node, the
// identity of the node cannot read the claim. The kubelet never starts this pod, because before it prepares claims, it waits for
// a ConfigMap that does not exist. cleanUp removes both.
func (t trial) allocate(driver string, devices ...device) *claim {
	t.count++
	meta := metav1.ObjectMeta{Name: fmt.Sprintf("%s%d", t.prefix, t.count), Namespace: t.namespace}
	api := t.kube.ResourceV1().ResourceClaims(t.namespace)
	object := &resourceapi.ResourceClaim{ObjectMeta: meta}
	object.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: request, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: cmp.Or(t.class, t.driver), AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(len(devices)),
	}}}
	object, err := api.Create(t.ctx, object, metav1.CreateOptions{})
	t.must(err)
	c := &claim{namespace: t.namespace, name: object.Name, uid: string(object.UID), devices: devices}
	t.claims = append(t.claims, c)
	pod, err := t.kube.CoreV1().Pods(t.namespace).Create(t.ctx, t.pod(meta), metav1.CreateOptions{})
	t.must(err)
	allocation := &resourceapi.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{t.node}}},
	}}}}
	if t.class != "" {
		class, err := t.kube.ResourceV1().DeviceClasses().Get(t.ctx, t.class, metav1.GetOptions{})
		t.must(err)
		for _, c := range class.Spec.Config {
			allocation.Devices.Config = append(allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
				Source: resourceapi.AllocationConfigSourceClass, DeviceConfiguration: c.DeviceConfiguration,
			})
		}
	}
	for _, d := range devices {
		result := resourceapi.DeviceRequestAllocationResult{Request: request, Driver: driver, Pool: d.pool, Device: d.name}
		if used, shared := t.shared[d]; shared {
			c.share = string(uuid.NewUUID())
			result.ShareID, result.ConsumedCapacity = (*types.UID)(&c.share), used
		}
		allocation.Devices.Results = append(allocation.Devices.Results, result)
	}
	object.Status.Allocation = allocation
	object.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
	_, err = api.UpdateStatus(t.ctx, object, metav1.UpdateOptions{})
	t.must(err)
	return c
}

// pod returns a pod on the node that uses the claim of the same name.
func (t trial) pod(meta metav1.ObjectMeta) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		NodeName: t.node, AutomountServiceAccountToken: new(bool), TerminationGracePeriodSeconds: new(int64),
		Tolerations:    []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "claim", ResourceClaimName: &meta.Name}},
		Volumes:        []corev1.Volume{{Name: "missing"}},
		Containers: []corev1.Container{{
			Name: "none", Image: "none", VolumeMounts: []corev1.VolumeMount{{Name: "missing", MountPath: "/missing"}},
			Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "claim"}}},
		}},
	}}
	p.Spec.Volumes[0].ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: meta.Name}}
	return p
}

// remove deletes the pod and the claim, and waits until both are gone.
func (t trial) remove(c *claim) error {
	if c.deleted {
		return nil
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	err := t.await(t.timeout, func() error {
		pod := t.kube.CoreV1().Pods(c.namespace).Delete(t.ctx, c.name, now)
		object := t.kube.ResourceV1().ResourceClaims(c.namespace).Delete(t.ctx, c.name, now)
		if apierrors.IsNotFound(pod) && apierrors.IsNotFound(object) {
			return nil
		}
		return errors.Join(fmt.Errorf("claim %s is not gone", c.name), pod, object)
	})
	c.deleted = err == nil
	return err
}

// cleanUp releases and removes the claims of a check.
func (s *sanity) cleanUp(ctx context.Context) error {
	t := trial{s, ctx}
	var errs []error
	for _, c := range s.claims {
		_ = t.unprepareOnce(c) // the checks of releases report errors
		errs = append(errs, t.remove(c))
	}
	s.claims = nil
	return errors.Join(errs...)
}
