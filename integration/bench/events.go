// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// event measures the time from an event of udevd to the bytes of the list. The floor is a bare read and a bare send.
func (b *bench) event() ([]result, error) {
	s, err := b.newStack(few, few)
	if err != nil {
		return nil, err
	}
	defer s.close()
	var bare listener
	w, err := newWire(bare.open)
	if err != nil {
		return nil, err
	}
	defer w.close()
	dir, err := b.subdir("f")
	if err != nil {
		return nil, err
	}
	floor, stop, err := s.floor(dir, bare.wait)
	if err != nil {
		return nil, err
	}
	defer stop()
	defer bare.file.Close()
	var ours, theirs samples
	for i := range b.countSamples(2000) {
		took, err := s.toggle(i)
		if err != nil {
			return nil, err
		}
		ours = append(ours, took)
		pause()
		begun, err := w.send(s.message("change", 0))
		if err != nil {
			return nil, err
		}
		l, _, err := floor.waitList("the list of the floor", anyList)
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, l.at.Sub(begun))
		pause()
	}
	return milliseconds("udev event to bytes of ListAndWatch", ours, theirs, map[int]float64{50: 1, 99: 5}), nil
}

// pause waits until everything is idle, because hardware events usually reach an idle daemon.
func pause() { time.Sleep(time.Duration(500+rand.IntN(1500)) * time.Microsecond) }

func anyList(list) bool { return true }

// toggle changes the state of a device, sends the event of udevd, and returns the time until the list shows the change. Call
// i is for device i. Calls alternate between removing and adding a device.
func (s *stack) toggle(i int) (time.Duration, error) {
	n := i / 2 % len(s.devices)
	state, unhealthy := "dead", 1
	if i%2 == 1 {
		state, unhealthy = "live", 0
	}
	if err := s.setState(n, state); err != nil {
		return 0, err
	}
	begun, err := s.wire.send(s.message("change", n))
	if err != nil {
		return 0, err
	}
	l, _, err := s.client.waitList("the changed list", func(l list) bool { return l.unhealthy() == unhealthy })
	return l.at.Sub(begun), err
}

// floor sends the newest list of the stack each time wait returns.
func (s *stack) floor(dir string, wait func() error) (*client, func(), error) {
	again, err := connect(s.client.conn.Target()[len("unix:"):])
	if err != nil {
		return nil, nil, err
	}
	defer again.close()
	l, _, err := again.waitList("the list for the floor", anyList)
	if err != nil {
		return nil, nil, err
	}
	message := &pluginapi.ListAndWatchResponse{}
	if err := proto.Unmarshal(l.raw, message); err != nil {
		return nil, nil, fmt.Errorf("decode the list: %w", err)
	}
	client, stop, err := floorServer{list: message, wait: wait}.serve(dir)
	if err != nil {
		return nil, nil, err
	}
	if _, _, err := client.waitList("the first list of the floor", anyList); err != nil {
		stop()
		return nil, nil, err
	}
	return client, stop, nil
}

// change measures the time from an event to the bytes of the list, for one of 10,000 devices. The floor is marshalling and
// sending that list.
func (b *bench) change() ([]result, error) {
	s, err := b.newStack(many, many)
	if err != nil {
		return nil, err
	}
	defer s.close()
	dir, err := b.subdir("f")
	if err != nil {
		return nil, err
	}
	now := make(chan struct{})
	floor, stop, err := s.floor(dir, func() error { <-now; return nil })
	if err != nil {
		return nil, err
	}
	defer stop()
	defer close(now)
	var ours, theirs samples
	for i := range b.countSamples(200) {
		took, err := s.toggle(i)
		if err != nil {
			return nil, err
		}
		ours = append(ours, took)
		time.Sleep(10 * time.Millisecond)
		begun := time.Now()
		now <- struct{}{}
		l, _, err := floor.waitList("the list of the floor", anyList)
		if err != nil {
			return nil, err
		}
		theirs = append(theirs, l.at.Sub(begun))
		time.Sleep(10 * time.Millisecond)
	}
	return []result{ratio("one change among 10,000 devices", "ms", ours.percentile(50), theirs.percentile(50), 3).withPercentile(ours)}, nil
}

// burst measures the arrival of 10,000 devices at the same time.
func (b *bench) burst() ([]result, error) {
	var took samples
	sends, overflows := 0, uint64(0)
	for range b.countSamples(5) {
		d, n, o, err := b.oneBurst()
		if err != nil {
			return nil, err
		}
		took, sends, overflows = append(took, d), max(sends, n), max(overflows, o)
	}
	what := "10,000 events at once"
	return []result{
		within(what+": all seen after, the slowest", "ms", took.percentile(100), 1000).of(len(took)),
		within(what+": lists sent, at most", "lists", float64(sends), 20).of(len(took)),
		within(what+": socket overflows, at most", "times", float64(overflows), 0).of(len(took)),
	}, nil
}

func (b *bench) oneBurst() (took time.Duration, sends int, overflows uint64, err error) {
	s, err := b.newStack(many, 0)
	if err != nil {
		return 0, 0, 0, err
	}
	defer s.close()
	messages := make([][]byte, many)
	for i := range messages {
		messages[i] = s.message("add", i)
	}
	runtime.GC()
	begun, err := s.wire.send(messages...)
	if err != nil {
		return 0, 0, 0, err
	}
	l, sends, err := s.client.waitList("10,000 devices", func(l list) bool { return l.healthy() == many })
	return l.at.Sub(begun), sends, s.inventory.Counts().Overflows, err
}
