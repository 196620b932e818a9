// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/metalplug/metalplug/daemon/api"
)

// prepare prepares a claim with one request for each device. It does so twice, because the kubelet may repeat its call.
func (s *story) prepare(words []string) error {
	return eventually(func() error {
		answer, err := s.prepareOnce(words)
		if err == nil {
			err = s.describedClaim(words[0], answer, "rw")
		}
		return err
	})
}

// admin prepares a claim of an administrator for one device, and checks the permissions.
func (s *story) admin(words []string) error {
	answer, err := s.prepareOnce(words[:2])
	if err != nil {
		return err
	}
	return s.describedClaim(words[0], answer, words[2])
}

// prepareOnce prepares a claim with one request for each device. If the name of the claim begins with "a", it has admin access.
func (s *story) prepareOnce(words []string) (answer api.Prepared, err error) {
	ask := api.Claim{Namespace: "ns", Name: words[0]}
	for i, name := range words[1:] {
		d, err := s.find(name)
		if err != nil {
			return answer, err
		}
		ask.Requests = append(ask.Requests, api.ClaimRequest{Name: fmt.Sprint("r", i), Devices: []string{d.ID}, Admin: words[0][0] == 'a'})
	}
	err = s.client().Post(context.Background(), "/v1/claims/"+words[0]+"/prepare", ask, &answer)
	return answer, err
}

// describedClaim checks that the CDI spec of a claim has nodes with these permissions, and variables, for each request.
func (s *story) describedClaim(uid string, answer api.Prepared, permissions string) error {
	devices, err := s.claimSpec(uid)
	if err != nil {
		return err
	}
	for _, r := range answer.Requests {
		var nodes []string
		env := 0
		for _, name := range r.CDI {
			edits, ok := devices[name]
			if !ok {
				return fmt.Errorf("the spec lacks %s", name)
			}
			env += len(edits.Env)
			for _, n := range edits.DeviceNodes {
				nodes = append(nodes, n.Path)
				if n.Permissions != permissions {
					return fmt.Errorf("the permissions of %s are %q", n.Path, n.Permissions)
				}
			}
		}
		if len(nodes) == 0 || env == 0 {
			return fmt.Errorf("the spec of %+v lacks nodes or variables: %+v", r, devices)
		}
	}
	return nil
}

// claimSpec returns the edits in the CDI spec of a claim by CDI name.
func (s *story) claimSpec(uid string) (map[string]specs.ContainerEdits, error) {
	text, err := os.ReadFile(s.path("cdi/metalplug-claim_" + uid + ".json"))
	if err != nil {
		return nil, err
	}
	var spec specs.Spec
	err = json.Unmarshal(text, &spec)
	devices := make(map[string]specs.ContainerEdits)
	for _, d := range spec.Devices {
		devices[spec.Kind+"="+d.Name] = d.ContainerEdits
	}
	return devices, err
}

// claimNodes waits until the CDI spec of a claim has exactly these nodes.
func (s *story) claimNodes(words []string) error {
	return eventually(func() error {
		devices, err := s.claimSpec(words[0])
		var nodes []string
		for _, edits := range devices {
			for _, n := range edits.DeviceNodes {
				nodes = append(nodes, n.HostPath)
			}
		}
		if slices.Sort(nodes); err == nil && !slices.Equal(nodes, words[1:]) {
			err = fmt.Errorf("it has the nodes %v", nodes)
		}
		return err
	})
}

// prepareFails prepares a claim, and expects an error that contains the text. A comma separates the names of the devices.
func (s *story) prepareFails(words []string) error {
	_, err := s.prepareOnce(append(words[:1:1], strings.Split(words[1], ",")...))
	return checkError(err, words[2:])
}

// prepareWaits prepares a claim with one request. The request must wait for the work that slowWork delays, and then succeed.
func (s *story) prepareWaits(words []string) error {
	done := make(chan error, 1)
	go func() {
		_, err := s.prepareOnce(words)
		done <- err
	}()
	select {
	case err := <-done:
		return fmt.Errorf("it did not wait: %w", err)
	case <-time.After(200 * time.Millisecond):
	}
	close(s.helpers.slow)
	return <-done
}

// prepareEnds prepares a claim, which must wait for slowWork. If there is a text, the claim is released, and the answer must contain
// the text. Otherwise, the client hangs up, and metalplugd must end the request without an answer.
func (s *story) prepareEnds(words []string) error {
	d, findErr := s.find(words[1])
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.client().Socket, Net: "unix"})
	if err = errors.Join(findErr, err); err != nil {
		return err
	}
	defer c.Close()
	body := fmt.Sprintf(`{"requests": [{"name": "r", "devices": [%q]}]}`, d.ID)
	fmt.Fprintf(c, "POST /v1/claims/%s/prepare HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", words[0], len(body), body)
	_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("it did not wait: %w", err)
	}
	end, text := c.CloseWrite, strings.Join(words[2:], " ")
	if text != "" {
		end = func() error { return s.unprepare(words[:1]) }
	}
	err = errors.Join(end(), c.SetReadDeadline(time.Now().Add(30*time.Second)))
	answer, readErr := io.ReadAll(c)
	if readErr != nil || text == "" && len(answer) > 0 || !strings.Contains(string(answer), text) {
		err = errors.Join(err, readErr, fmt.Errorf("the answer is %q", answer))
	}
	return err
}

// unprepare releases a claim twice, because the kubelet may repeat its call.
func (s *story) unprepare(words []string) error {
	for range 2 {
		if err := s.client().Post(context.Background(), "/v1/claims/"+words[0]+"/unprepare", nil, new(struct{})); err != nil {
			return err
		}
	}
	if _, err := os.Stat(s.path("cdi/metalplug-claim_" + words[0] + ".json")); !os.IsNotExist(err) {
		return fmt.Errorf("its CDI spec: %v", err)
	}
	return nil
}

// waitClaimed waits until the daemon shows that a claim holds a device.
func (s *story) waitClaimed(words []string) error {
	return s.pollDevice(words[0], func(d api.Device) error {
		if len(d.Claims) == 0 || d.Claims[0] != (api.ClaimRef{UID: words[1], Namespace: "ns", Name: words[1]}) {
			return fmt.Errorf("its claims are %v", d.Claims)
		}
		return nil
	})
}
