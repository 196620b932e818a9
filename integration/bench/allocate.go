// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const perContainer = 8

// allocate measures Allocate of 8 devices among 10,000. The floor is GetDevicePluginOptions, which does nothing, on the
// same server and connection. At each call the daemon is idle, as at the admission of a pod.
func (b *bench) allocate() (_ []result, err error) {
	s, err := b.newSite(many, 1)
	if err != nil {
		return nil, err
	}
	p, _, err := b.launch(s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	c, err := connectIn(s.plugins)
	if err != nil {
		return nil, err
	}
	defer c.close()
	ids, err := deviceIDs(c)
	if err != nil {
		return nil, err
	}
	plugin := pluginapi.NewDevicePluginClient(c.conn)
	var ours, theirs samples
	for i := range b.countSamples(100) {
		from := i * perContainer % (len(ids) - perContainer + 1)
		took, err := timed(func(ctx context.Context) error { return allocateOnce(ctx, plugin, ids[from:from+perContainer]) })
		if err != nil {
			return nil, err
		}
		ours = append(ours, took)
		settle()
		took, err = timed(func(ctx context.Context) error {
			_, err := plugin.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
			return err
		})
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, took)
		settle()
	}
	r := ratio("Allocate, 8 devices of 10,000", "ms", ours.percentile(50), theirs.percentile(50), 1.3).withPercentile(ours)
	if !r.OK {
		r = r.withNote("of what it takes more than an empty call, two fifths are to look whether eight nodes are there, each " +
			"through a link and in no cache; a third to have the inventory hold the devices; the rest to carry the IDs and " +
			"the nodes")
	}
	return []result{r}, nil
}

// settle waits until the daemon has finished the work after an allocation, such as saving the lease.
func settle() { time.Sleep(150 * time.Millisecond) }

func timed(call func(context.Context) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begun := time.Now()
	err := call(ctx)
	return time.Since(begun), err
}

func allocateOnce(ctx context.Context, plugin pluginapi.DevicePluginClient, ids []string) error {
	answer, err := plugin.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	if err != nil {
		return err
	}
	if n := len(answer.GetContainerResponses()); n != 1 {
		return fmt.Errorf("allocate: %d answers for one container", n)
	}
	if n := len(answer.GetContainerResponses()[0].GetDevices()); n != len(ids) {
		return fmt.Errorf("allocate: %d nodes for %d devices", n, len(ids))
	}
	return nil
}

// deviceIDs returns the IDs in the first list.
func deviceIDs(c *client) ([]string, error) {
	l, _, err := c.waitList("the list", anyList)
	if err != nil {
		return nil, err
	}
	message := &pluginapi.ListAndWatchResponse{}
	if err := proto.Unmarshal(l.raw, message); err != nil {
		return nil, fmt.Errorf("decode the list: %w", err)
	}
	if len(message.GetDevices()) < perContainer {
		return nil, errors.New("too few devices in the list")
	}
	ids := make([]string, len(message.GetDevices()))
	for i, d := range message.GetDevices() {
		ids[i] = d.GetID()
	}
	return ids, nil
}
