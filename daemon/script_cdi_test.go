// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/metalplug/metalplug/daemon/cdi"
)

// spec waits until the CDI spec of a resource describes exactly these devices. A resource without devices has no spec.
func (s *story) spec(words []string) error {
	want := slices.Sorted(slices.Values(words[1:]))
	for limit := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		got, err := s.specDevices(words[0])
		if err == nil && slices.Equal(got, want) {
			return nil
		}
		if time.Now().After(limit) {
			return fmt.Errorf("it has %v, %w", got, err)
		}
	}
}

// specDevices returns the devices in the CDI specs of a resource.
func (s *story) specDevices(resource string) ([]string, error) {
	files, err := filepath.Glob(s.path("cdi/*.json"))
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		var spec specs.Spec
		if err := errors.Join(err, json.Unmarshal(text, &spec)); err != nil {
			return nil, err
		}
		if spec.Kind != cdi.Kind(resource) {
			continue
		}
		for _, d := range spec.Devices {
			ids = append(ids, d.Name)
		}
	}
	return ids, nil
}

// cdiNames checks that the last container got these CDI devices and no nodes.
func (s *story) cdiNames(words []string) error {
	var got []string
	for _, d := range s.container.Response.GetCdiDevices() {
		got = append(got, d.GetName())
	}
	if nodes := s.container.Response.GetDevices(); len(nodes) > 0 || !slices.Equal(got, words) {
		return fmt.Errorf("the container gets CDI devices %v and nodes %v", got, nodes)
	}
	return nil
}

// nodes checks that the last container got these nodes and no CDI devices.
func (s *story) nodes(words []string) error {
	var got []string
	for _, d := range s.container.Response.GetDevices() {
		got = append(got, d.GetContainerPath())
	}
	if names := s.container.Response.GetCdiDevices(); len(names) > 0 || !slices.Equal(got, words) {
		return fmt.Errorf("the container gets nodes %v and CDI devices %v", got, names)
	}
	return nil
}

// specDir changes the directory of the CDI specs. "remove" removes it as a reboot does, "block" makes it unwritable,
// and "unblock" makes it writable again.
func (s *story) specDir(words []string) error {
	switch strings.Join(words, " ") {
	case "remove":
		return os.RemoveAll(s.path("cdi"))
	case "block":
		return errors.Join(os.RemoveAll(s.path("cdi")), os.WriteFile(s.path("cdi"), nil, 0o600))
	case "unblock":
		return os.Remove(s.path("cdi"))
	}
	return errors.New("no such command")
}

// plainResource removes all lines that were added to the resource.
func (s *story) plainResource([]string) error { return os.Remove(s.path("resource")) }
