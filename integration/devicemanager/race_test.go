// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// If a stream ends late, the device manager ends the newest stream of the resource, of any plugin (Kubernetes issue
// 121994, until 1.36). So the test does not wait between the end of an endpoint and the next one. An endpoint that was
// disconnected must return in each round.
func TestRestartedAtOnce(t *testing.T) {
	const rounds = 50
	for name, again := range map[string]func(k *Kubelet, d *daemon){
		"stopped": func(_ *Kubelet, d *daemon) {
			d.stop()
			d.start()
		},
		"unheard": func(k *Kubelet, d *daemon) { // the kubelet processes the end of one endpoint and the start of the next together
			d.must(k.Signal(syscall.SIGSTOP))
			d.kill()
			unlinkOwn(d)
			d.start()
			eventually(d.t, "its socket", func() error {
				if own, _ := d.sockets(); len(own) != 1 {
					return fmt.Errorf("%v", own)
				}
				return nil
			})
			d.must(k.Signal(syscall.SIGCONT))
		},
		"reloaded": func(_ *Kubelet, d *daemon) { // reload twice, so that the second reload stops an endpoint that has not registered yet
			for n := range 2 {
				d.reload(permitted(n))
				d.awaitReady()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // runs with the other tests
			k := newNode(t, Options{})
			d := newDaemon(t, k.options.Dir, plain(4))
			d.awaitReady()
			d.reload(permitted(1)) // only one resource, because the device manager's log has no room for more
			d.awaitReady()
			for range rounds {
				before := registrations(k, widgetResource)
				again(k, d)
				eventually(t, "all devices once more", func() error { return usable(t, k, before) })
			}
			sees(t, k, widgetResource, 4, 4)
			t.Logf("registered %d times in %d rounds", registrations(k, widgetResource), rounds)
		})
	}
}

// permitted returns a configuration for the nth endpoint of the widgets.
func permitted(n int) string {
	return strings.Replace(widgets, "class", fmt.Sprintf("permissions = %q\nclass", []string{"r", "rw"}[n]), 1)
}

// usable returns the reason if a pod cannot get all widgets yet, after this number of registrations.
func usable(t *testing.T, k *Kubelet, others int) error {
	if registrations(k, widgetResource) <= others {
		return errors.New("not registered")
	}
	uid := fmt.Sprintf("p%d", time.Now().UnixNano()) // a rejected pod never comes back
	if err := k.Admit(within(t), pod(uid, widgetResource, 4)); err != nil {
		return err
	}
	defer remove(t, k, uid)
	options, err := k.Run(within(t), uid, "main")
	if err != nil {
		return err
	}
	for _, node := range options.Nodes {
		if node.Permissions != "rw" {
			return fmt.Errorf("an endpoint that was replaced has given %v", options.Nodes)
		}
	}
	return nil
}
